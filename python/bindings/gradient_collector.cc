#include "python/bindings/gradient_collector.h"

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "core/check.h"
#include "python/bindings/register.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

GradientCollector::GradientCollector(std::shared_ptr<EngineOwner> owner)
    : owner_(std::move(owner)), grad_name_("grad"), importer_(owner_->where()) {}

void GradientCollector::on_gradient(ParameterId id, py::handle parameter) {
  py::object gradient = parameter.attr(grad_name_);
  if (gradient.is_none()) return;
  const TensorView source = read(id, gradient);
  Engine& engine = owner_->enter();
  if (owner_->gpu == nullptr) {
    const py::gil_scoped_release release;
    engine.hooks().contribute(std::array{Contribution{id, source}});
  } else {
    PendingGradients& pending = owner_->pending;
    if (pending.has(id)) owner_->settle();
    const GradientBucket bucket = engine.hooks().gradient_bucket(id);
    if (pending.add({id, source}, std::move(gradient), bucket)) owner_->settle();
  }
  py::setattr(parameter, grad_name_, py::none());
}

TensorView GradientCollector::read(ParameterId id, py::handle gradient) {
  if (const std::optional<TensorView> view = importer_.quick(gradient)) return *view;
  const Engine& engine = *owner_->engine;
  const std::string what = "gradient of " + engine.parameters()[static_cast<size_t>(id)].name;
  const TensorView view = import_tensor(gradient, what, owner_->where());
  if (view.dtype != engine.param_dtype()) {
    fail<ConfigError>("{}: got {}, expected {} like the parameter", what, name_of(view.dtype),
                      name_of(engine.param_dtype()));
  }
  importer_.learn(gradient, view);
  return view;
}

void register_gradient_collector(py::module_& m) {
  py::class_<GradientCollector, std::shared_ptr<GradientCollector>>(
      m, "GradientCollector", "Hands autograd's gradients to an engine.")
      .def(py::init([](const EngineHandle& engine) {
             return std::make_shared<GradientCollector>(engine.owner());
           }),
           "engine"_a)
      .def(
          "hook",
          [](const std::shared_ptr<GradientCollector>& self, ParameterId id) {
            return py::cpp_function(
                [self, id](py::handle parameter) { self->on_gradient(id, parameter); });
          },
          "index"_a, "For Tensor.register_post_accumulate_grad_hook.");
}

}  // namespace zerorun
