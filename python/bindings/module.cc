#include <exception>

#include "core/printable.h"
#include "python/bindings/register.h"
#include "zerorun/error.h"
#include "zerorun/version.h"

namespace py = pybind11;

namespace zerorun {

namespace {

// Makes C++ exceptions of type E arrive as the Python class `name`.
template <typename E>
py::object register_error(py::module_& m, const char* name, const py::handle& bases,
                          const char* doc) {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> made;
  const py::object& error =
      made.call_once_and_store_result([&] { return py::exception<E>(m, name, bases); })
          .get_stored();
  error.attr("__module__") = "zerorun";  // where users import it from, and what tracebacks show
  error.attr("__doc__") = doc;
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const E& found) {  // its text may have bytes of files and names, which may be any
      PyErr_SetString(made.get_stored().ptr(), printable_lines(found.what()).c_str());
    }
  });
  return error;
}

void register_errors(py::module_& m) {
  // The base comes first: of the classes that fit, the one registered last is raised.
  const py::object error =
      register_error<Error>(m, "Error", PyExc_RuntimeError, "Every exception raised by zerorun.");
  // Python programs catch a bad argument as ValueError and a bad file as OSError.
  const auto also = [&](PyObject* builtin) { return py::make_tuple(error, py::handle(builtin)); };
  register_error<ConfigError>(m, "ConfigError", also(PyExc_ValueError),
                              "A configuration or an argument that cannot be meant.");
  register_error<CommError>(m, "CommError", error, "A collective that cannot complete.");
  register_error<DeviceError>(m, "DeviceError", error, "The accelerator or host memory refused.");
  register_error<IoError>(m, "IoError", also(PyExc_OSError),
                          "A file or socket that could not be used.");
  register_error<CheckpointError>(m, "CheckpointError", also(PyExc_ValueError),
                                  "A checkpoint that is damaged, incomplete, or of another model.");
  register_error<NumericError>(m, "NumericError", also(PyExc_ArithmeticError),
                               "Numbers with which training cannot go on.");
  register_error<InternalError>(m, "InternalError", also(PyExc_AssertionError),
                                "A broken invariant of zerorun, or an API call out of order.");
}

}  // namespace

}  // namespace zerorun

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ core of zerorun.";
  m.attr("__version__") = ZERORUN_VERSION;
  zerorun::register_errors(m);
  zerorun::register_config(m);
  zerorun::register_gpu(m);
  zerorun::register_communicator(m);
  zerorun::register_engine(m);
  zerorun::register_figures(m);
  zerorun::register_timeline(m);
  zerorun::register_gradient_collector(m);
  zerorun::register_full_memory(m);
  zerorun::register_parameter_switch(m);
  zerorun::register_lr_schedule(m);
  zerorun::register_checkpoint(m);
}
