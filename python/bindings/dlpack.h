#pragma once

#include <cstdint>

// The structures of DLPack (https://dmlc.github.io/dlpack, Apache-2.0) that a tensor needs, and the
// table of functions through which a library exchanges tensors without Python's help (DLPack 1.2).
// The layout is fixed by that standard.

namespace zerorun::dlpack {

enum DeviceType : int32_t { kCpu = 1, kCuda = 2 };
enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4 };

struct Device {
  int32_t device_type;
  int32_t device_id;

  bool operator==(const Device&) const = default;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // nullptr: contiguous
  uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* manager_context;
  void (*deleter)(ManagedTensor* self);
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

// A capsule of this is the attribute kExchange of a tensor's type (PyTorch from 2.10 on).
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  // Fills `out`, whose memory stays the tensor's. -1: with a Python exception set.
  int (*tensor_from_py_object)(void* py_object, Tensor* out);
  // The stream on which the library works in this thread. -1: with a Python exception set.
  int (*current_work_stream)(DeviceType device_type, int32_t device_id, void** out);
};

inline constexpr uint32_t kMajorVersion = 1;
inline constexpr const char* kExchange = "__dlpack_c_exchange_api__";
inline constexpr const char* kExchangeCapsule = "dlpack_exchange_api";
inline constexpr const char* kFresh = "dltensor";
inline constexpr const char* kUsed = "used_dltensor";

}  // namespace zerorun::dlpack
