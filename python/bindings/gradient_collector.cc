#include "python/bindings/gradient_collector.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "python/bindings/register.h"
#include "python/bindings/tensor_exchange.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

GradientCollector::GradientCollector(std::shared_ptr<EngineOwner> owner, bool eager)
    : owner_(std::move(owner)),
      eager_(eager),
      grad_name_("grad"),
      importer_(owner_->where()),
      expected_(owner_->engine->parameters().size(), 1),
      received_(owner_->engine->parameters().size(), 0) {}

void GradientCollector::on_gradient(ParameterId id, py::handle parameter) {
  const py::object gradient = parameter.attr(grad_name_);
  if (gradient.is_none()) return;
  const auto index = static_cast<size_t>(id);
  if (eager_ && received_[index] >= expected_[index] && open_) {
    const bool known = std::any_of(late_.begin(), late_.end(),
                                   [id](const auto& entry) { return entry.first == id; });
    if (!known) late_.emplace_back(id, py::reinterpret_borrow<py::object>(parameter));
    ++received_[index];
    return;
  }
  contribute(id, parameter, gradient);
}

TensorView GradientCollector::read(ParameterId id, py::handle gradient) {
  const Engine& engine = *owner_->engine;
  std::optional<TensorView> view = importer_.quick(gradient);
  if (!view) {
    const std::string what = "gradient of " + engine.parameters()[static_cast<size_t>(id)].name;
    view = import_tensor(gradient, what, owner_->where());
    if (view->dtype != engine.param_dtype()) {
      fail<ConfigError>("{}: got {}, expected {} like the parameter", what, name_of(view->dtype),
                        name_of(engine.param_dtype()));
    }
    importer_.learn(gradient, *view);
  }
  if (view->numel != engine.numel(id)) {
    fail<ConfigError>("gradient of {}: got {} elements, expected {}",
                      engine.parameters()[static_cast<size_t>(id)].name, view->numel,
                      engine.numel(id));
  }
  return *view;
}

void GradientCollector::contribute(ParameterId id, py::handle parameter, py::handle gradient) {
  const TensorView source = read(id, gradient);
  const int received = ++received_[static_cast<size_t>(id)];
  const bool complete = eager_ && received == expected_[static_cast<size_t>(id)];
  owner_->enter();
  {
    const py::gil_scoped_release release;
    write(id, source, complete);
  }
  py::setattr(parameter, grad_name_, py::none());
}

void GradientCollector::begin_micro_step() {
  if (open_) return;
  open_ = true;
  // Another backward before the step: the batch goes on.
  if (batch_complete_) owner_->engine->extend_batch();
  batch_complete_ = false;
}

void GradientCollector::write(ParameterId id, TensorView source, bool complete) {
  begin_micro_step();
  Engine& engine = *owner_->engine;
  Device& device = engine.device();
  const GradientView target = engine.gradient(id);
  if (target.accumulate) {
    device.add(device.inline_stream(), source, target.view);
  } else {
    device.cast(device.inline_stream(), source, target.view);
  }
  if (complete) engine.grad_ready(id);
}

bool GradientCollector::end_micro_step() {
  owner_->enter();
  const py::gil_scoped_release release;
  begin_micro_step();
  for (size_t i = 0; i < received_.size(); ++i) {
    if (received_[i] > 0) expected_[i] = received_[i];
    received_[i] = 0;
  }
  open_ = false;
  batch_complete_ = owner_->engine->end_micro_step();
  return batch_complete_;
}

bool GradientCollector::collect_late() {
  std::vector<std::pair<ParameterId, py::object>> late = std::exchange(late_, {});
  for (const auto& [id, parameter] : late) {
    // A later micro-step's hook may have taken it along.
    const py::object gradient = parameter.attr(grad_name_);
    if (!gradient.is_none()) contribute(id, parameter, gradient);
  }
  const std::vector<int> expected = expected_;
  const bool complete = end_micro_step();
  expected_ = expected;
  return complete;
}

void GradientCollector::drop_batch() {
  for (const auto& [id, parameter] : std::exchange(late_, {})) {
    py::setattr(parameter, grad_name_, py::none());
  }
  batch_complete_ = false;
  Engine& engine = owner_->enter();
  const py::gil_scoped_release release;
  engine.drop_batch();
}

void register_gradient_collector(py::module_& m) {
  py::class_<GradientCollector, std::shared_ptr<GradientCollector>>(
      m, "GradientCollector", "Carries gradients from autograd into an engine's buckets.")
      .def(py::init([](const EngineHandle& engine, bool eager) {
             return std::make_shared<GradientCollector>(engine.owner(), eager);
           }),
           "engine"_a, "eager"_a)
      .def(
          "hook",
          [](const std::shared_ptr<GradientCollector>& self, ParameterId id) {
            return py::cpp_function(
                [self, id](py::handle parameter) { self->on_gradient(id, parameter); });
          },
          "index"_a, "For Tensor.register_post_accumulate_grad_hook.")
      .def_property_readonly("open", &GradientCollector::open)
      .def_property_readonly("eager", &GradientCollector::eager)
      .def_property_readonly("has_late", &GradientCollector::has_late)
      .def("end_micro_step", &GradientCollector::end_micro_step,
           "True when a whole batch has been accumulated and step() is due.")
      .def("collect_late", &GradientCollector::collect_late,
           "A further micro-step for what came late on any rank. Collective.")
      .def("drop_batch", &GradientCollector::drop_batch,
           "Forgets the gradients since the last step. Between micro-steps. Collective.")
      .def("stepped", &GradientCollector::stepped, "The batch was stepped.");
}

}  // namespace zerorun
