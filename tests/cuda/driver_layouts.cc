// Compiled beside NVIDIA's own header: what the runtime declares of the driver (driver.h) lies as it does there.
#include <cuda.h>

#include <cstddef>
#include <string_view>
#include <type_traits>

#include "cuda/driver.h"

using namespace ral::cuda;

#define SAME(own, theirs) static_assert(sizeof(own) == sizeof(theirs))
#define AT(own, member, theirs, other) static_assert(offsetof(own, member) == offsetof(theirs, other))

SAME(LaunchConfig, CUlaunchConfig);
AT(LaunchConfig, block, CUlaunchConfig, blockDimX);
AT(LaunchConfig, shared, CUlaunchConfig, sharedMemBytes);
AT(LaunchConfig, stream, CUlaunchConfig, hStream);
AT(LaunchConfig, attributes, CUlaunchConfig, attrs);
AT(LaunchConfig, attribute_count, CUlaunchConfig, numAttrs);
SAME(LaunchAttribute, CUlaunchAttribute);
AT(LaunchAttribute, cluster, CUlaunchAttribute, value);
SAME(PoolProperties, CUmemPoolProps);
AT(PoolProperties, location_kind, CUmemPoolProps, location);
AT(PoolProperties, security, CUmemPoolProps, win32SecurityAttributes);
SAME(KernelParameters, CUDA_KERNEL_NODE_PARAMS);
AT(KernelParameters, grid, CUDA_KERNEL_NODE_PARAMS, gridDimX);
AT(KernelParameters, block, CUDA_KERNEL_NODE_PARAMS, blockDimX);
AT(KernelParameters, shared, CUDA_KERNEL_NODE_PARAMS, sharedMemBytes);
AT(KernelParameters, parameters, CUDA_KERNEL_NODE_PARAMS, kernelParams);
AT(KernelParameters, extra, CUDA_KERNEL_NODE_PARAMS, extra);
AT(KernelParameters, kernel, CUDA_KERNEL_NODE_PARAMS, kern);
AT(KernelParameters, context, CUDA_KERNEL_NODE_PARAMS, ctx);
SAME(CopyParameters, CUDA_MEMCPY3D);
AT(CopyParameters, from.kind, CUDA_MEMCPY3D, srcMemoryType);
AT(CopyParameters, from.place, CUDA_MEMCPY3D, srcDevice);
AT(CopyParameters, from.height, CUDA_MEMCPY3D, srcHeight);
AT(CopyParameters, to.kind, CUDA_MEMCPY3D, dstMemoryType);
AT(CopyParameters, to.place, CUDA_MEMCPY3D, dstDevice);
AT(CopyParameters, width, CUDA_MEMCPY3D, WidthInBytes);
AT(CopyParameters, height, CUDA_MEMCPY3D, Height);
AT(CopyParameters, depth, CUDA_MEMCPY3D, Depth);
SAME(FillParameters, CUDA_MEMSET_NODE_PARAMS);
AT(FillParameters, value, CUDA_MEMSET_NODE_PARAMS, value);
AT(FillParameters, element, CUDA_MEMSET_NODE_PARAMS, elementSize);
AT(FillParameters, width, CUDA_MEMSET_NODE_PARAMS, width);
AT(FillParameters, height, CUDA_MEMSET_NODE_PARAMS, height);

static_assert(kProcessors == int(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) && kMajor == int(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) &&
              kMinor == int(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) && kMemoryPools == int(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) &&
              kSharedPerBlock == int(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
static_assert(kIllegalAddress == int(CUDA_ERROR_ILLEGAL_ADDRESS) && kLaunchFailed == int(CUDA_ERROR_LAUNCH_FAILED) &&
              kUnsupportedPtx == int(CUDA_ERROR_UNSUPPORTED_PTX_VERSION) && kNotReady == int(CUDA_ERROR_NOT_READY) &&
              kNoBinaryForGpu == int(CUDA_ERROR_NO_BINARY_FOR_GPU) && kHardwareStackError == int(CUDA_ERROR_HARDWARE_STACK_ERROR));
static_assert(kMaxDynamicShared == int(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) && kNonBlocking == int(CU_STREAM_NON_BLOCKING) &&
              kWithoutTiming == int(CU_EVENT_DISABLE_TIMING) && kReleaseThreshold == int(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) &&
              kClusterDimension == int(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) && kPortable == int(CU_MEMHOSTALLOC_PORTABLE) &&
              kMapped == int(CU_MEMHOSTALLOC_DEVICEMAP) && kRelaxed == int(CU_STREAM_CAPTURE_MODE_RELAXED));

// The functions, as NVIDIA declares them: those whose names are macros there are the versions that the runtime asks for by name. Handles and
// pointers are all pointers.
template <typename Own, typename Theirs>
struct Fits : std::false_type {};
template <typename Result, typename... Own, typename TheirResult, typename... Theirs>
struct Fits<Result (*)(Own...), TheirResult (*)(Theirs...)>
    : std::bool_constant<sizeof(Result) == sizeof(TheirResult) && sizeof...(Own) == sizeof...(Theirs) &&
                         ((sizeof(Own) == sizeof(Theirs) && std::is_pointer_v<Own> == std::is_pointer_v<Theirs>)&&...)> {};
#define SYMBOL(member, symbol, parameters) constexpr std::string_view name_of_##member = symbol;
RAL_CUDA_FUNCTIONS(SYMBOL)
#define TEXT(name) #name
#define NAME(name) TEXT(name)
#define FITS(member, function)                                                  \
  static_assert(Fits<decltype(Driver::member), decltype(&function)>::value); \
  static_assert(name_of_##member == NAME(function))
FITS(launch, cuLaunchKernelEx);
FITS(load_module, cuModuleLoadDataEx);
FITS(create_pool, cuMemPoolCreate);
FITS(allocate_async, cuMemAllocFromPoolAsync);
FITS(free_async, cuMemFreeAsync);
FITS(copy_async, cuMemcpyAsync);
FITS(fill_async, cuMemsetD8Async);
FITS(fill_words_async, cuMemsetD32Async);
FITS(record_event, cuEventRecord);
FITS(query_event, cuEventQuery);
FITS(create_stream, cuStreamCreate);
FITS(create_graph, cuGraphCreate);
FITS(destroy_graph, cuGraphDestroy);
FITS(add_kernel_node, cuGraphAddKernelNode);
FITS(add_copy_node, cuGraphAddMemcpyNode);
FITS(add_fill_node, cuGraphAddMemsetNode);
FITS(instantiate_graph, cuGraphInstantiateWithFlags);
FITS(destroy_graph_exec, cuGraphExecDestroy);
FITS(set_kernel_node, cuGraphExecKernelNodeSetParams);
FITS(set_copy_node, cuGraphExecMemcpyNodeSetParams);
FITS(set_fill_node, cuGraphExecMemsetNodeSetParams);
FITS(launch_graph, cuGraphLaunch);
FITS(begin_capture, cuStreamBeginCapture);
FITS(end_capture, cuStreamEndCapture);
FITS(add_graph_node, cuGraphAddChildGraphNode);
FITS(set_graph_node, cuGraphExecChildGraphNodeSetParams);
