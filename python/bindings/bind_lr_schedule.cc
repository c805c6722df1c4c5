#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "python/bindings/register.h"
#include "zerorun/config.h"
#include "zerorun/lr_schedule.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

void register_lr_schedule(py::module_& m) {
  py::class_<LrSchedule>(m, "LrSchedule", "Learning rates as a function of applied steps.")
      .def(
          "values",
          [](const LrSchedule& self, int64_t applied_steps, int group) {
            const ScheduledValues values = self.values(applied_steps, group);
            std::optional<std::pair<double, double>> betas;
            if (values.betas) betas.emplace(values.betas->beta1, values.betas->beta2);
            return std::pair(values.lr, betas);
          },
          "applied_steps"_a, "group"_a, "(lr, betas or None) for the step after `applied_steps`.")
      .def("last_batch_iteration", &LrSchedule::last_batch_iteration, "applied_steps"_a);
  m.def(
      "make_lr_schedule",
      [](const Config& config, std::vector<double> base_lrs) {
        return make_lr_schedule(config.scheduler, std::move(base_lrs));
      },
      "config"_a, "base_lrs"_a, "The schedule of the configuration's scheduler block.");
}

}  // namespace zerorun
