#pragma once

#include <cstdint>

// The structures of DLPack 0.8 (https://dmlc.github.io/dlpack, Apache-2.0) that a tensor in host
// memory needs; the layout is fixed by that standard.

namespace zerorun::dlpack {

enum DeviceType : int32_t { kCpu = 1 };
enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4 };

struct Device {
  int32_t device_type;
  int32_t device_id;
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

inline constexpr const char* kFresh = "dltensor";
inline constexpr const char* kUsed = "used_dltensor";

}  // namespace zerorun::dlpack
