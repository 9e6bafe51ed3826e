// The functions of NVIDIA's driver that the runtime calls, found by name in libcuda.so.1 when a GPU is first asked for. Nothing of CUDA is
// needed to build or to load this library; the declarations are those of the CUDA driver API, version 12.0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.h"

namespace ral::cuda {

using Address = uint64_t;  // CUdeviceptr
using StreamHandle = void*;
using EventHandle = void*;
using FunctionHandle = void*;
using ModuleHandle = void*;
using ContextHandle = void*;
using PoolHandle = void*;
using GraphHandle = void*;
using GraphExecHandle = void*;
using NodeHandle = void*;

// CUresult.
enum Result : int32_t {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kUnsupportedPtx = 222,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchTimeout = 702,
  kAssert = 710,
  kHardwareStackError = 714,
  kLaunchFailed = 719,
};

// CUdevice_attribute.
enum Attribute : int32_t {
  kProcessors = 16,
  kMajor = 75,
  kMinor = 76,
  kSharedPerBlock = 97,  // bytes, for kernels that ask for it
  kMemoryPools = 115,
};

constexpr int32_t kMaxDynamicShared = 8;        // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr uint32_t kNonBlocking = 1;            // CU_STREAM_NON_BLOCKING
constexpr uint32_t kWithoutTiming = 2;          // CU_EVENT_DISABLE_TIMING
constexpr uint32_t kPortable = 1, kMapped = 2;  // CU_MEMHOSTALLOC_...
constexpr int32_t kReleaseThreshold = 4;        // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
constexpr int32_t kClusterDimension = 4;        // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
constexpr int32_t kRelaxed = 2;                 // CU_STREAM_CAPTURE_MODE_RELAXED

struct LaunchAttribute {  // CUlaunchAttribute
  int32_t id;
  char padding[4];
  union {
    uint32_t cluster[3];
    char bytes[64];
  };
};

struct LaunchConfig {  // CUlaunchConfig
  uint32_t grid[3], block[3], shared;
  StreamHandle stream;
  LaunchAttribute* attributes;
  uint32_t attribute_count;
};

struct PoolProperties {  // CUmemPoolProps
  int32_t kind;          // CU_MEM_ALLOCATION_TYPE_PINNED
  int32_t handles;       // of other processes: none
  int32_t location_kind; // CU_MEM_LOCATION_TYPE_DEVICE
  int32_t location;
  void* security;
  size_t most;
  unsigned char reserved[56];
};

// What nodes of graphs hold.
struct KernelParameters {  // CUDA_KERNEL_NODE_PARAMS_v2
  FunctionHandle function;
  uint32_t grid[3], block[3], shared;
  void** parameters;
  void** extra;
  void* kernel;  // instead of a function
  ContextHandle context;
};

struct CopyParameters {  // CUDA_MEMCPY3D
  struct Side {
    size_t x, y, z, level;
    int32_t kind;  // CUmemorytype
    void* host;
    Address place;
    void* array;
    void* reserved;
    size_t pitch, height;
  } from, to;
  size_t width, height, depth;  // bytes, rows, planes
};

struct FillParameters {  // CUDA_MEMSET_NODE_PARAMS
  Address to;
  size_t pitch;
  uint32_t value, element;
  size_t width, height;
};

static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56 && sizeof(PoolProperties) == 88);
static_assert(sizeof(KernelParameters) == 72 && sizeof(CopyParameters) == 200 && sizeof(FillParameters) == 40);

// (member, symbol, parameters): every function returns a Result.
#define RAL_CUDA_FUNCTIONS(F)                                                                                             \
  F(init, "cuInit", (uint32_t flags))                                                                                     \
  F(driver_version, "cuDriverGetVersion", (int32_t * version))                                                            \
  F(error_name, "cuGetErrorName", (int32_t error, const char** name))                                                     \
  F(error_text, "cuGetErrorString", (int32_t error, const char** text))                                                   \
  F(device_count, "cuDeviceGetCount", (int32_t * count))                                                                  \
  F(device, "cuDeviceGet", (int32_t * device, int32_t ordinal))                                                           \
  F(device_name, "cuDeviceGetName", (char* name, int32_t size, int32_t device))                                           \
  F(device_memory, "cuDeviceTotalMem_v2", (size_t * bytes, int32_t device))                                               \
  F(device_attribute, "cuDeviceGetAttribute", (int32_t * value, int32_t attribute, int32_t device))                       \
  F(retain_context, "cuDevicePrimaryCtxRetain", (ContextHandle * context, int32_t device))                                \
  F(push_context, "cuCtxPushCurrent_v2", (ContextHandle context))                                                         \
  F(pop_context, "cuCtxPopCurrent_v2", (ContextHandle * context))                                                         \
  F(synchronize_context, "cuCtxSynchronize", ())                                                                          \
  F(load_module, "cuModuleLoadDataEx",                                                                                    \
    (ModuleHandle * module, const void* image, uint32_t options, int32_t* names, void** values))                          \
  F(unload_module, "cuModuleUnload", (ModuleHandle module))                                                               \
  F(find_kernel, "cuModuleGetFunction", (FunctionHandle * kernel, ModuleHandle module, const char* name))                 \
  F(set_attribute, "cuFuncSetAttribute", (FunctionHandle kernel, int32_t attribute, int32_t value))                       \
  F(launch, "cuLaunchKernelEx", (const LaunchConfig* config, FunctionHandle kernel, void** parameters, void** extra))     \
  F(create_stream, "cuStreamCreate", (StreamHandle * stream, uint32_t flags))                                             \
  F(synchronize_stream, "cuStreamSynchronize", (StreamHandle stream))                                                     \
  F(destroy_stream, "cuStreamDestroy_v2", (StreamHandle stream))                                                          \
  F(stream_context, "cuStreamGetCtx", (StreamHandle stream, ContextHandle * context))                                     \
  F(create_event, "cuEventCreate", (EventHandle * event, uint32_t flags))                                                 \
  F(record_event, "cuEventRecord", (EventHandle event, StreamHandle stream))                                              \
  F(query_event, "cuEventQuery", (EventHandle event))                                                                     \
  F(synchronize_event, "cuEventSynchronize", (EventHandle event))                                                         \
  F(elapsed, "cuEventElapsedTime", (float* milliseconds, EventHandle from, EventHandle to))                               \
  F(destroy_event, "cuEventDestroy_v2", (EventHandle event))                                                              \
  F(create_pool, "cuMemPoolCreate", (PoolHandle * pool, const PoolProperties* properties))                                \
  F(set_pool, "cuMemPoolSetAttribute", (PoolHandle pool, int32_t attribute, void* value))                                 \
  F(trim_pool, "cuMemPoolTrimTo", (PoolHandle pool, size_t bytes))                                                        \
  F(allocate_async, "cuMemAllocFromPoolAsync", (Address * place, size_t bytes, PoolHandle pool, StreamHandle stream))     \
  F(free_async, "cuMemFreeAsync", (Address place, StreamHandle stream))                                                   \
  F(allocate, "cuMemAlloc_v2", (Address * place, size_t bytes))                                                           \
  F(free, "cuMemFree_v2", (Address place))                                                                                \
  F(memory_info, "cuMemGetInfo_v2", (size_t * free, size_t * total))                                                      \
  F(allocate_host, "cuMemHostAlloc", (void** place, size_t bytes, uint32_t flags))                                        \
  F(free_host, "cuMemFreeHost", (void* place))                                                                            \
  F(copy_async, "cuMemcpyAsync", (Address to, Address from, size_t bytes, StreamHandle stream))                           \
  F(fill_async, "cuMemsetD8Async", (Address to, uint8_t value, size_t count, StreamHandle stream))                        \
  F(fill_words_async, "cuMemsetD32Async", (Address to, uint32_t value, size_t count, StreamHandle stream))                \
  F(create_graph, "cuGraphCreate", (GraphHandle * graph, uint32_t flags))                                                 \
  F(destroy_graph, "cuGraphDestroy", (GraphHandle graph))                                                                 \
  F(add_kernel_node, "cuGraphAddKernelNode_v2",                                                                           \
    (NodeHandle * node, GraphHandle graph, const NodeHandle* behind, size_t count, const KernelParameters* parameters))   \
  F(add_copy_node, "cuGraphAddMemcpyNode",                                                                                \
    (NodeHandle * node, GraphHandle graph, const NodeHandle* behind, size_t count, const CopyParameters* parameters,      \
     ContextHandle context))                                                                                              \
  F(add_fill_node, "cuGraphAddMemsetNode",                                                                                \
    (NodeHandle * node, GraphHandle graph, const NodeHandle* behind, size_t count, const FillParameters* parameters,      \
     ContextHandle context))                                                                                              \
  F(instantiate_graph, "cuGraphInstantiateWithFlags", (GraphExecHandle * exec, GraphHandle graph, unsigned long long flags)) \
  F(destroy_graph_exec, "cuGraphExecDestroy", (GraphExecHandle exec))                                                     \
  F(set_kernel_node, "cuGraphExecKernelNodeSetParams_v2",                                                                 \
    (GraphExecHandle exec, NodeHandle node, const KernelParameters* parameters))                                          \
  F(set_copy_node, "cuGraphExecMemcpyNodeSetParams",                                                                      \
    (GraphExecHandle exec, NodeHandle node, const CopyParameters* parameters, ContextHandle context))                     \
  F(set_fill_node, "cuGraphExecMemsetNodeSetParams",                                                                      \
    (GraphExecHandle exec, NodeHandle node, const FillParameters* parameters, ContextHandle context))                     \
  F(launch_graph, "cuGraphLaunch", (GraphExecHandle exec, StreamHandle stream))                                           \
  F(begin_capture, "cuStreamBeginCapture_v2", (StreamHandle stream, int32_t mode))                                        \
  F(end_capture, "cuStreamEndCapture", (StreamHandle stream, GraphHandle * graph))                                        \
  F(add_graph_node, "cuGraphAddChildGraphNode",                                                                           \
    (NodeHandle * node, GraphHandle graph, const NodeHandle* behind, size_t count, GraphHandle child))                    \
  F(set_graph_node, "cuGraphExecChildGraphNodeSetParams", (GraphExecHandle exec, NodeHandle node, GraphHandle child))

struct Driver {
#define RAL_CUDA_MEMBER(member, symbol, parameters) int32_t(*member) parameters = nullptr;
  RAL_CUDA_FUNCTIONS(RAL_CUDA_MEMBER)
#undef RAL_CUDA_MEMBER
  int32_t version = 0;  // 12040 = CUDA 12.4
  int32_t devices = 0;

  // Finds and starts the driver. RAL_ERROR_TARGET: there is none, it is too old, or it has no GPU.
  Status load();

  // "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
  std::string text(int32_t result) const;
};

// Whether an error has ended the context: every call from then on has it, too.
bool is_fatal(int32_t result) noexcept;

// The driver of this process, loaded when it is first asked for; what failed then fails again.
Status driver(const Driver** found);

// Whether this process was forked off after its parent had started the driver, which is of no use here then.
bool forked() noexcept;

}  // namespace ral::cuda
