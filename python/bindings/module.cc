#include "python/bindings/register.h"
#include "zerorun/version.h"

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
  zerorun::register_page_pool(m);
  zerorun::register_parameter_switch(m);
  zerorun::register_lr_schedule(m);
  zerorun::register_checkpoint(m);
}
