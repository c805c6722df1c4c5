#include "python/bindings/gpu.h"

#include <pybind11/stl.h>

#include <functional>

#include "device/cuda_backend.h"
#include "device/drain.h"
#include "python/bindings/register.h"
#include "python/bindings/tensor_exchange.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

std::shared_ptr<py::object> keep(py::object object) {
  return {new py::object(std::move(object)), [](py::object* kept) {
            if (Py_IsInitialized() == 0) return;  // the interpreter ended, and the object with it
            const py::gil_scoped_acquire acquire;
            delete kept;
          }};
}

namespace {

// Calls it where memory is used up; an error of its own leaves that error to be told.
std::function<void()> reclaimer(py::object reclaim) {
  return [kept = keep(std::move(reclaim))] {
    if (Py_IsInitialized() == 0) return;
    const py::gil_scoped_acquire acquire;
    try {
      (*kept)();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("giving back GPU memory");
    }
  };
}

}  // namespace

Gpu::Gpu(std::optional<int> index, py::handle exchange_api, py::object current_stream,
         py::object reclaim)
    : device_(make_cuda_device({.index = index})),
      api_(exchange_api_in(exchange_api)),
      ask_(keep(std::move(current_stream))) {
  if (api_ != nullptr && api_->current_work_stream == nullptr) api_ = nullptr;
  if (!reclaim.is_none()) device_->use_reclaimer(reclaimer(std::move(reclaim)));
}

void* Gpu::current_stream() const {
  if (api_ == nullptr) {
    void* const handle = PyLong_AsVoidPtr((*ask_)().ptr());
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return handle;
  }
  void* handle = nullptr;
  if (api_->current_work_stream(dlpack::kCuda, where().device_id, &handle) != 0) {
    throw py::error_already_set();
  }
  return handle;
}

void Gpu::follow() {
  followed_ = current_stream();
  device_->use_inline_stream(followed_);
}

void Gpu::drain() noexcept { zerorun::drain(device_->inline_stream()); }

void register_gpu(py::module_& m) {
  py::class_<Gpu, std::shared_ptr<Gpu>>(m, "Gpu", "A GPU for one engine.")
      .def(py::init<std::optional<int>, py::handle, py::object, py::object>(), "index"_a,
           "exchange_api"_a, "current_stream"_a, "reclaim"_a = py::none(),
           "`index`: among the visible ones; None: LOCAL_RANK's. The current stream is what "
           "DLPack's exchange API says, else the handle that `current_stream` returns. `reclaim` "
           "is called where the GPU has no memory left, before an allocation fails. Raises "
           "DeviceError.")
      .def_property_readonly("index", [](const Gpu& self) { return self.where().device_id; })
      .def_property_readonly("name", [](const Gpu& self) { return self.device()->name(); });
  m.def("why_no_cuda", &why_no_cuda, py::call_guard<py::gil_scoped_release>(),
        "Why there is no GPU for zerorun; empty where there is one.");
}

}  // namespace zerorun
