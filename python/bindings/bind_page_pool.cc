#include <cstddef>
#include <cstdint>
#include <memory>

#include "os/page_pool.h"
#include "python/bindings/engine_handle.h"
#include "python/bindings/register.h"
#include "python/bindings/tensor_exchange.h"
#include "zerorun/engine.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

namespace {

void serve(const std::shared_ptr<PagePool>& self, const EngineHandle& handle) {
  Device* const device = &handle.engine().device();
  handle.engine().hooks().use_full_memory([self, device](int bucket, size_t nbytes) {
    std::shared_ptr<void> counted = device->account(nbytes, MemoryCategory::buckets);
    return Buffer(self->take(bucket, nbytes), nbytes,
                  [self, bucket, counted] { self->give(bucket); });
  });
}

}  // namespace

void register_page_pool(py::module_& m) {
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
