#include "python/bindings/full_memory.h"

#include <memory>
#include <utility>

#include "python/bindings/gpu.h"
#include "zerorun/engine.h"
#include "zerorun/out_of_memory.h"

namespace py = pybind11;

namespace zerorun {

namespace {

// Python's own error that there is no memory. In Python it is that error again.
class OutOfMemoryInPython : public OutOfMemory {
 public:
  explicit OutOfMemoryInPython(py::error_already_set& error)
      : OutOfMemory(error.what()), error_(error) {}
  void restore() { error_.restore(); }

 private:
  py::error_already_set error_;
};

}  // namespace

void translate_out_of_memory(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (OutOfMemoryInPython& error) {
    error.restore();
  }
}

void use_full_memory(const EngineHandle& self, py::object acquire, py::object release,
                     py::object out_of_memory) {
  const auto take = keep(std::move(acquire));
  const auto give = keep(std::move(release));
  const auto lacks_memory = keep(std::move(out_of_memory));
  Device* const device = &self.engine().device();
  self.engine().hooks().use_full_memory(
      [take, give, lacks_memory, device](int bucket, size_t nbytes) {
        std::shared_ptr<void> counted = device->account(nbytes, MemoryCategory::buckets);
        const auto acquired = [&] {
          const py::gil_scoped_acquire locked;
          try {
            return PyLong_AsVoidPtr((*take)(bucket).ptr());
          } catch (py::error_already_set& error) {
            if (error.matches(*lacks_memory)) throw OutOfMemoryInPython(error);
            throw;
          }
        };
        void* data = nullptr;
        try {
          data = acquired();
        } catch (const OutOfMemory&) {
          if (!device->release_kept()) throw;  // there is no more for the other allocator
          data = acquired();
        }
        return Buffer(data, nbytes, [give, bucket, counted] {
          if (Py_IsInitialized() == 0) return;
          const py::gil_scoped_acquire locked_again;
          try {
            (*give)(bucket);
          } catch (py::error_already_set& error) {
            error.discard_as_unraisable("release of full parameters");
          }
        });
      });
}

}  // namespace zerorun
