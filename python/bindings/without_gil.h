#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <utility>

namespace zerorun {

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
