#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <utility>

#include "python/bindings/tensor_exchange.h"
#include "zerorun/device.h"

namespace zerorun {

// The GPU of one engine, which works on the stream that the tensor library uses there.
class Gpu {
 public:
  // `index`: not set, LOCAL_RANK's. The library's current stream is told by DLPack's table of
  // functions, a capsule, where it is one that can; else by `current_stream`, which returns the
  // handle as a number. `reclaim`, unless it is None, gives back the GPU memory that the library
  // keeps for later. Throws DeviceError when there is no such GPU.
  Gpu(std::optional<int> index, pybind11::handle exchange_api, pybind11::object current_stream,
      pybind11::object reclaim);

  const std::shared_ptr<Device>& device() const { return device_; }
  dlpack::Device where() const { return {dlpack::kCuda, device_->gpu().value()}; }
  // The engine's next work comes after what the library has submitted, and before what it will.
  // With the GIL.
  void follow();
  // True if the library's current stream is the one that was followed last.
  bool is_followed() const { return current_stream() == followed_; }
  // Waits for what was submitted on the last stream; errors have been or will be told elsewhere.
  void drain() noexcept;

 private:
  void* current_stream() const;

  const std::shared_ptr<Device> device_;
  const dlpack::ExchangeApi* api_;  // null: ask_
  const std::shared_ptr<pybind11::object> ask_;
  void* followed_ = nullptr;
};

// Keeps a Python object for code that may let go of it without the GIL.
std::shared_ptr<pybind11::object> keep(pybind11::object object);

// For what may wait for another rank, which may be a thread that needs the GIL: lets go of it if
// this thread has it.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() == 1) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

// The same object, whose last reference, whoever has it, ends it so.
template <typename T>
std::shared_ptr<T> ending_without_gil(std::shared_ptr<T> object) {
  T* const address = object.get();
  return {address, [object = std::move(object)](T* /*address*/) mutable {
            const WithoutGil unlocked;
            object.reset();
          }};
}

}  // namespace zerorun
