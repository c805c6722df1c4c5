#include <array>
#include <optional>
#include <string>
#include <utility>

#include "core/check.h"
#include "python/bindings/engine_handle.h"
#include "python/bindings/register.h"
#include "python/bindings/tensor_exchange.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

namespace {

// Hands autograd's gradients to an engine: one hook per parameter, called after autograd has
// accumulated into `.grad`, takes it from there; on a CPU the engine copies it at once, on a GPU
// with the others of its bucket. What a contribution means for the micro-step is the engine's
// affair.
class GradientCollector {
 public:
  explicit GradientCollector(std::shared_ptr<EngineOwner> owner)
      : owner_(std::move(owner)), grad_name_("grad"), importer_(owner_->where()) {}

  // The hook of `parameter`, which the engine knows as `id`. The engine waits and computes without
  // the GIL.
  void on_gradient(ParameterId id, py::handle parameter) {
    py::object gradient = parameter.attr(grad_name_);
    if (gradient.is_none()) return;
    TensorView source = read(id, gradient);
    // A view that PyTorch negates where it reads it, as of the imaginary part of a conjugate. Of
    // more elements autograd makes a copy, for their strides.
    if (source.numel == 1 && gradient.attr("is_neg")().cast<bool>()) {
      gradient = gradient.attr("resolve_neg")();
      source = read(id, gradient);
    }
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

 private:
  TensorView read(ParameterId id, py::handle gradient) {
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

  std::shared_ptr<EngineOwner> owner_;
  const py::str grad_name_;
  TensorImporter importer_;
};

}  // namespace

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
