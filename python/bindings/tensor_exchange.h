#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>

#include "python/bindings/dlpack.h"
#include "zerorun/tensor.h"

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
