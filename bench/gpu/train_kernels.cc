#include <vector>

#include "bench/gpu/rate_table.h"
#include "train/run/make_kernels.h"

namespace zerorun::bench {

namespace {

constexpr int64_t kWidth = 768;
constexpr int64_t kVocabulary = 50304;

// Tensors of `train`'s kernels, in bf16 or as the kernels ask for.
class Tensors {
 public:
  Tensors(Device& device, DType dtype) : device_(device), dtype_(dtype) {}

  TensorView make(int64_t numel) { return make(numel, dtype_); }
  TensorView make(int64_t numel, DType dtype) {
    buffers_.push_back(GradientLike(device_, numel).in(dtype));
    return view_of(buffers_.back(), dtype, numel);
  }

 private:
  Device& device_;
  const DType dtype_;
  std::vector<Buffer> buffers_;
};

void show_layer_norm(Device& device, train::Kernels& kernels, int64_t rows, RateTable& table) {
  const int64_t numel = rows * kWidth;
  Tensors tensors(device, kernels.activation_dtype());
  const train::LayerNormShape shape{rows, kWidth};
  const TensorView x = tensors.make(numel);
  const TensorView y = tensors.make(numel);
  const TensorView moments = tensors.make(2 * rows, DType::fp32);
  const TensorView gain = tensors.make(kWidth, DType::bf16);
  const TensorView bias = tensors.make(kWidth, DType::bf16);
  const TensorView dgain = tensors.make(kWidth, DType::bf16);
  const TensorView dbias = tensors.make(kWidth, DType::bf16);
  const double bytes = static_cast<double>(numel) * static_cast<double>(size_of(x.dtype));
  table.show("layer norm", 2 * bytes,
             [&] { kernels.layer_norm(shape, x, gain, bias, moments, y); });
  table.show("layer norm, backward", 3 * bytes, [&] {
    kernels.layer_norm_backward(shape, {x, moments, gain}, x,
                                {{y, false}, {dgain, false}, {dbias, false}});
  });
}

void show_cross_entropy(Device& device, train::Kernels& kernels, int64_t rows, RateTable& table) {
  Tensors tensors(device, kernels.activation_dtype());
  const int64_t stride = kernels.logits_stride(kVocabulary);
  const TensorView logits = tensors.make(rows * stride);
  std::vector<int32_t> host(static_cast<size_t>(rows));
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<int32_t>(i * 37 % kVocabulary);
  const Buffer targets = device.allocate(host.size() * 4, MemoryCategory::other);
  Stream& stream = device.inline_stream();
  const TensorView view = view_of(targets, DType::uint8, rows * 4);
  device.upload(stream, host.data(), view);
  stream.synchronize();
  const double bytes =
      static_cast<double>(rows * stride) * static_cast<double>(size_of(logits.dtype));
  table.show("cross entropy and its gradient", 2 * bytes, [&] {
    kernels.cross_entropy_gradient({rows, kVocabulary, stride}, view.as<const int32_t>(), 1.0F,
                                   logits);
  });
  kernels.take_loss();
}

// What GELU and a bias's gradient cost beside their products, which may have them as epilogues.
void show_products(Device& device, train::Kernels& kernels, int64_t rows, RateTable& table) {
  Tensors tensors(device, kernels.activation_dtype());
  const train::LinearShape shape{.rows = rows, .in = kWidth, .out = 4 * kWidth};
  const TensorView x = tensors.make(rows * shape.in);
  const TensorView hidden = tensors.make(rows * shape.out);
  const TensorView active = tensors.make(rows * shape.out);
  const TensorView weight = tensors.make(shape.in * shape.out, DType::bf16);
  const TensorView bias = tensors.make(shape.out, DType::bf16);
  const TensorView dweight = tensors.make(shape.in * shape.out, DType::bf16);
  const TensorView dbias = tensors.make(shape.out, DType::bf16);
  table.show_ms("product", [&] { kernels.linear(shape, x, weight, bias, {}, hidden); });
  table.show_ms("product and GELU",
                [&] { kernels.linear_gelu(shape, x, weight, bias, hidden, active); });
  table.show_ms("weight gradient", [&] {
    kernels.linear_gradients(shape, x, hidden, {dweight, false}, {{}, false});
  });
  table.show_ms("weight and bias gradients", [&] {
    kernels.linear_gradients(shape, x, hidden, {dweight, false}, {dbias, false});
  });
}

}  // namespace

void show_train_kernels(Device& device, int64_t numel, RateTable& table) {
  const auto kernels = train::make_kernels(device, {.dtype = DType::bf16});
  const int64_t rows = std::max<int64_t>(1, numel / kWidth);
  show_layer_norm(device, *kernels, rows, table);
  show_cross_entropy(device, *kernels, std::max<int64_t>(1, numel / kVocabulary), table);
  show_products(device, *kernels, std::max<int64_t>(1, rows / 4), table);
}

}  // namespace zerorun::bench
