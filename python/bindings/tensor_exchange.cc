#include "python/bindings/tensor_exchange.h"

#include <functional>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "zerorun/dtype.h"

namespace py = pybind11;

namespace zerorun {

namespace {

struct Export {
  dlpack::ManagedTensor managed{};
  int64_t numel = 0;
  std::shared_ptr<void> owner;
};

dlpack::DataType dlpack_type(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return {dlpack::kFloat, 32, 1};
    case DType::bf16:
      return {dlpack::kBfloat, 16, 1};
    case DType::fp16:
      return {dlpack::kFloat, 16, 1};
    case DType::int64:
      return {dlpack::kInt, 64, 1};
    case DType::uint8:
      return {dlpack::kUInt, 8, 1};
  }
  fail<InternalError>("dtype {} has no DLPack equivalent", static_cast<int>(dtype));
}

// Runs for capsules that nobody consumed; a consumer renames the capsule and calls the deleter.
void destroy_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, dlpack::kFresh) == 0) return;
  auto* managed =
      static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, dlpack::kFresh));
  managed->deleter(managed);
}

void delete_export(dlpack::ManagedTensor* managed) {
  // The owner may hold an engine, whose end may wait for its streams.
  const std::unique_ptr<Export> exported(static_cast<Export*>(managed->manager_context));
}

bool is_contiguous(const dlpack::Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  for (int i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

int64_t numel_of(const dlpack::Tensor& tensor) {
  return std::accumulate(tensor.shape, tensor.shape + tensor.ndim, int64_t{1}, std::multiplies<>());
}

// As PyTorch writes it.
std::string name_of(dlpack::Device device) {
  return device.device_type == dlpack::kCpu ? "cpu" : fmt::format("cuda:{}", device.device_id);
}

std::byte* address(const py::object& number) {
  return static_cast<std::byte*>(PyLong_AsVoidPtr(number.ptr()));
}

}  // namespace

const dlpack::ExchangeApi* exchange_api_in(py::handle capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::kExchangeCapsule) == 0) return nullptr;
  const auto* api = static_cast<const dlpack::ExchangeApi*>(
      PyCapsule_GetPointer(capsule.ptr(), dlpack::kExchangeCapsule));
  return api->version.major == dlpack::kMajorVersion ? api : nullptr;
}

py::capsule export_view(TensorView view, std::shared_ptr<void> owner, dlpack::Device where) {
  auto exported = std::make_unique<Export>();
  exported->numel = view.numel;
  exported->owner = std::move(owner);
  exported->managed.tensor = {view.data,        where,   1, dlpack_type(view.dtype),
                              &exported->numel, nullptr, 0};
  exported->managed.manager_context = exported.get();
  exported->managed.deleter = &delete_export;
  py::capsule capsule(&exported->managed, dlpack::kFresh, &destroy_capsule);
  exported.release();  // NOLINT(bugprone-unused-return-value): the capsule owns it now
  return capsule;
}

TensorView import_tensor(py::handle tensor, const std::string& what, dlpack::Device where) {
  if (tensor.attr("layout").attr("__str__")().cast<std::string>() != "torch.strided") {
    fail<ConfigError>("{}: got a tensor of layout {}, expected a dense one", what,
                      py::str(tensor.attr("layout")).cast<std::string>());
  }
  const auto device = py::str(tensor.attr("device")).cast<std::string>();
  if (device != name_of(where)) {
    fail<ConfigError>("{}: got a tensor on device '{}', expected '{}'; move it with .to()", what,
                      device, name_of(where));
  }
  if (!tensor.attr("is_contiguous")().cast<bool>()) {
    fail<ConfigError>("{}: got a tensor that is not contiguous; call .contiguous()", what);
  }
  return {address(tensor.attr("data_ptr")()), tensor.attr("numel")().cast<int64_t>(),
          parse_dtype(py::str(tensor.attr("dtype")).cast<std::string>())};
}

TensorImporter::TensorImporter(dlpack::Device where)
    : where_(where),
      layout_name_("layout"),
      dtype_name_("dtype"),
      device_name_("device"),
      is_contiguous_("is_contiguous"),
      data_ptr_("data_ptr"),
      numel_("numel") {}

std::optional<TensorView> TensorImporter::quick(py::handle tensor) const {
  if (!type_ || !py::type::handle_of(tensor).is(type_)) return std::nullopt;
  return api_ != nullptr ? exchange(tensor) : read_attributes(tensor);
}

std::optional<TensorView> TensorImporter::exchange(py::handle tensor) const {
  dlpack::Tensor found{};
  if (api_->tensor_from_py_object(tensor.ptr(), &found) != 0) {
    PyErr_Clear();  // import_tensor says what is wrong
    return std::nullopt;
  }
  const dlpack::DataType known = dlpack_type(known_);
  if (found.device != where_ || found.dtype.code != known.code || found.dtype.bits != known.bits ||
      !is_contiguous(found)) {
    return std::nullopt;
  }
  return TensorView{static_cast<std::byte*>(found.data) + found.byte_offset, numel_of(found),
                    known_};
}

std::optional<TensorView> TensorImporter::read_attributes(py::handle tensor) const {
  if (!py::object(tensor.attr(layout_name_)).is(layout_) ||
      !py::object(tensor.attr(dtype_name_)).is(dtype_) ||
      !py::object(tensor.attr(device_name_)).equal(device_) ||
      !py::object(tensor.attr(is_contiguous_)()).is(py::handle(Py_True))) {
    return std::nullopt;
  }
  return TensorView{address(tensor.attr(data_ptr_)()), tensor.attr(numel_)().cast<int64_t>(),
                    known_};
}

void TensorImporter::learn(py::handle tensor, TensorView view) {
  type_ = py::type::of(tensor);
  api_ = exchange_api_in(py::getattr(type_, dlpack::kExchange, py::none()));
  if (api_ != nullptr && api_->tensor_from_py_object == nullptr) api_ = nullptr;
  layout_ = tensor.attr(layout_name_);
  dtype_ = tensor.attr(dtype_name_);
  device_ = tensor.attr(device_name_);
  known_ = view.dtype;
}

}  // namespace zerorun
