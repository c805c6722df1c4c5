#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "zerorun/tensor.h"

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

}  // namespace zerorun::dlpack

namespace zerorun {

// Memory crosses between the core and Python's tensor libraries without a copy, and without this
// module knowing any of them: outwards as DLPack capsules, inwards by address.

inline constexpr dlpack::Device kHost = {dlpack::kCpu, 0};

// A flat DLPack capsule of `view`. `owner` lives until the last tensor made from it is gone.
pybind11::capsule export_view(TensorView view, std::shared_ptr<void> owner, dlpack::Device where);

// The memory of a torch tensor (anything with data_ptr, numel, dtype and is_contiguous), which the
// caller keeps alive. Throws ConfigError naming `what` when it is not dense, contiguous and on the
// device `where`, or of a dtype that DType lacks.
TensorView import_tensor(pybind11::handle tensor, const std::string& what,
                         dlpack::Device where = kHost);

// import_tensor for tensors of one type and device, at a cost that a hook per parameter can afford:
// through DLPack's table of functions where the type has it, else by a few attribute reads for
// tensors that are like one that was imported before.
class TensorImporter {
 public:
  explicit TensorImporter(dlpack::Device where);
  // nullopt: not dense, contiguous and on the device, or of a dtype or type not learned.
  std::optional<TensorView> quick(pybind11::handle tensor) const;
  // Keeps the properties of `tensor`, whose view import_tensor gave.
  void learn(pybind11::handle tensor, TensorView view);

 private:
  std::optional<TensorView> exchange(pybind11::handle tensor) const;
  std::optional<TensorView> read_attributes(pybind11::handle tensor) const;

  const dlpack::Device where_;
  pybind11::str layout_name_, dtype_name_, device_name_, is_contiguous_, data_ptr_, numel_;
  pybind11::object type_, layout_, dtype_, device_;
  const dlpack::ExchangeApi* api_ = nullptr;  // of type_
  DType known_ = DType::fp32;
};

// DLPack's table of functions in a capsule; nullptr for anything else, and for another version.
const dlpack::ExchangeApi* exchange_api_in(pybind11::handle capsule);

}  // namespace zerorun
