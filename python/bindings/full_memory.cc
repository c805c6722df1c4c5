#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "os/page_pool.h"
#include "python/bindings/engine_handle.h"
#include "python/bindings/gpu.h"
#include "python/bindings/register.h"
#include "python/bindings/tensor_exchange.h"
#include "zerorun/engine.h"
#include "zerorun/out_of_memory.h"

namespace py = pybind11;
using namespace py::literals;

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

// For pybind11: what `acquire` raised arrives as it was.
void translate_out_of_memory(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (OutOfMemoryInPython& error) {
    error.restore();
  }
}

void serve(const std::shared_ptr<PagePool>& self, const EngineHandle& handle) {
  Device* const device = &handle.engine().device();
  handle.engine().hooks().use_full_memory([self, device](int bucket, size_t nbytes) {
    std::shared_ptr<void> counted = device->account(nbytes, MemoryCategory::buckets);
    return Buffer(self->take(bucket, nbytes), nbytes,
                  [self, bucket, counted] { self->give(bucket); });
  });
}

}  // namespace

void use_full_memory(const EngineHandle& self, py::object acquire, py::object release,
                     py::object out_of_memory) {
  const auto take = keep(std::move(acquire));
  const auto give = keep(std::move(release));
  const auto lacks_memory = keep(std::move(out_of_memory));
  Device* const device = &self.engine().device();
  self.enter().hooks().use_full_memory(  // copies that nobody holds go back on the current stream
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

void register_full_memory(py::module_& m) {
  py::register_exception_translator(&translate_out_of_memory);
  py::class_<PagePool, std::shared_ptr<PagePool>>(
      m, "PagePool", "Ranges of host memory of which only some have pages at a time.")
      .def(py::init<>())
      .def(
          "reserve",
          [](const std::shared_ptr<PagePool>& self, int range, size_t nbytes) {
            const TensorView bytes{self->reserve(range, nbytes), static_cast<int64_t>(nbytes),
                                   DType::uint8};
            return export_view(bytes, self, kHost);
          },
          "index"_a, "nbytes"_a,
          "The range's bytes, as a DLPack capsule; an access while it has no pages is SIGSEGV.")
      .def("serve", &serve, "engine"_a,
           "From now on, the engine gathers a bucket into the range of its number. Between "
           "gathers.");
}

}  // namespace zerorun
