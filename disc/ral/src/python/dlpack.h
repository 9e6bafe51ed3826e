// The structures of DLPack 1.x (https://dmlc.github.io/dlpack) that the binding reads and writes.
#pragma once

#include <cstdint>

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

constexpr int32_t kDLCPU = 1, kDLCUDA = 2;

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

constexpr uint8_t kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLComplex = 5, kDLBool = 6;

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null = row-major
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

constexpr uint64_t kDLReadOnly = 1;

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};

struct DLPackExchangeAPIHeader {
  DLPackVersion version;
  DLPackExchangeAPIHeader* previous;
};

// Found on a tensor type as the capsule `__dlpack_c_exchange_api__`. Functions return 0, or -1 with a Python error set.
struct DLPackExchangeAPI {
  DLPackExchangeAPIHeader header;
  void* managed_tensor_allocator;
  int (*managed_tensor_from_py_object_no_sync)(void* object, DLManagedTensorVersioned** out);
  int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned* tensor, void** out);
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** stream);  // may be null
};
