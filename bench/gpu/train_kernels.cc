#include <algorithm>
#include <numeric>
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

// Text has some tokens far more often than others: here, every fourth token is one of 16.
void show_embedding(Device& device, train::Kernels& kernels, int64_t rows, RateTable& table) {
  const int64_t length = std::min<int64_t>(rows, 1024);
  rows -= rows % length;
  Tensors tensors(device, kernels.activation_dtype());
  std::vector<int32_t> tokens(static_cast<size_t>(rows));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(i % 4 == 0 ? i / 4 % 16 : i * 7919 % kVocabulary);
  }
  std::vector<int32_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return tokens[static_cast<size_t>(a)] < tokens[static_cast<size_t>(b)];
  });
  std::vector<int32_t> begins;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto token = [&](size_t at) { return tokens[static_cast<size_t>(order[at])]; };
    if (i == 0 || token(i) != token(i - 1)) begins.push_back(static_cast<int32_t>(i));
  }
  const auto distinct = static_cast<int64_t>(begins.size());
  begins.push_back(static_cast<int32_t>(rows));
  Stream& stream = device.inline_stream();
  std::vector<Buffer> memory;
  const auto on_device = [&](const std::vector<int32_t>& values) {
    memory.push_back(device.allocate(values.size() * sizeof(int32_t), MemoryCategory::other));
    const auto nbytes = static_cast<int64_t>(memory.back().nbytes());
    const TensorView view = view_of(memory.back(), DType::uint8, nbytes);
    device.upload(stream, values.data(), view);
    return view.as<const int32_t>();
  };
  const train::TokenGrid grid{
      .tokens = on_device(tokens), .rows = rows, .seq_len = length, .width = kWidth};
  const train::TokenOrder sorted{on_device(order), on_device(begins), distinct};
  stream.synchronize();
  const TensorView wte = tensors.make(kVocabulary * kWidth, DType::bf16);
  const TensorView wpe = tensors.make(length * kWidth, DType::bf16);
  const TensorView x = tensors.make(rows * kWidth);
  const double row = static_cast<double>(kWidth) * static_cast<double>(size_of(DType::bf16));
  const double of_x = static_cast<double>(x.nbytes());
  table.show("embedding", of_x + static_cast<double>(rows) * row,
             [&] { kernels.embed(grid, wte, wpe, x); });
  table.show(
      "embedding, backward", 2 * of_x + static_cast<double>(2 * distinct + length) * row, [&] {
        kernels.embed_backward(grid, sorted, x, {wte, true}, {wpe, false});  // the head was before
      });
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
  const auto product = [&] { kernels.linear(shape, x, weight, bias, {}, hidden); };
  const auto with_gelu = [&] { kernels.linear_gelu(shape, x, weight, bias, hidden, active); };
  const auto gradients = [&](const TensorView& of_bias) {
    kernels.linear_gradients(shape, x, hidden, {dweight, false}, {of_bias, false});
  };
  const auto weights_alone = [&] { gradients({}); };
  const auto both = [&] { gradients(dbias); };
  table.show_ms("product", product);
  table.show_ms("product and GELU", with_gelu);
  table.show_ms("weight gradient", weights_alone);
  table.show_ms("weight and bias gradients", both);
  const auto bytes = static_cast<double>(hidden.nbytes());
  table.show_added("what GELU adds", 2 * bytes, product, with_gelu);
  table.show_added("what the bias gradient adds", bytes, weights_alone, both);
}

}  // namespace

void show_train_kernels(Device& device, int64_t numel, RateTable& table) {
  const auto kernels = train::make_kernels(device, {.dtype = DType::bf16});
  const int64_t rows = std::max<int64_t>(1, numel / kWidth);
  show_layer_norm(device, *kernels, rows, table);
  show_cross_entropy(device, *kernels, std::max<int64_t>(1, numel / kVocabulary), table);
  show_embedding(device, *kernels, rows, table);
  show_products(device, *kernels, std::max<int64_t>(1, rows / 4), table);
}

}  // namespace zerorun::bench
