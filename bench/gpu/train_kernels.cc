#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/gpu/rate_table.h"
#include "train/model/kernels.h"

namespace zerorun::bench {

namespace {

constexpr int64_t kWidth = 768;
constexpr int64_t kVocabulary = 50304;

// Tensors of `train`'s kernels, in bf16 or as the kernels ask for.
class KernelTensors {
 public:
  KernelTensors(Device& device, DType dtype) : device_(device), dtype_(dtype) {}

  TensorView make(int64_t numel) { return make(numel, dtype_); }
  TensorView make(int64_t numel, DType dtype) {
    const TensorView view = memory_.make(dtype, numel, 0.0F);
    GradientLike(device_, numel).cast_to(view);
    return view;
  }

 private:
  Device& device_;
  const DType dtype_;
  Tensors memory_{device_};
};

void show_layer_norm(Device& device, train::Kernels& kernels, int64_t rows, RateTable& table) {
  const int64_t numel = rows * kWidth;
  KernelTensors tensors(device, kernels.activation_dtype());
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
  KernelTensors tensors(device, kernels.activation_dtype());
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
  KernelTensors tensors(device, kernels.activation_dtype());
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

// A linear layer and its gradients.
class Linear {
 public:
  Linear(Device& device, DType dtype, const train::LinearShape& shape)
      : tensors_(device, dtype),
        shape_(shape),
        x_(tensors_.make(shape.rows * shape.in)),
        dx_(tensors_.make(shape.rows * shape.in)),
        hidden_(tensors_.make(shape.rows * shape.out)),
        active_(tensors_.make(shape.rows * shape.out)),
        weight_(tensors_.make(shape.in * shape.out, DType::bf16)),
        dweight_(tensors_.make(shape.in * shape.out, DType::bf16)),
        bias_(tensors_.make(shape.out, DType::bf16)),
        dbias_(tensors_.make(shape.out, DType::bf16)) {}

  double hidden_nbytes() const { return static_cast<double>(hidden_.nbytes()); }

  void forward(train::Kernels& kernels) const {
    kernels.linear(shape_, x_, weight_, bias_, {}, hidden_);
  }
  void forward_gelu(train::Kernels& kernels) const {
    kernels.linear_gelu(shape_, x_, weight_, bias_, hidden_, active_);
  }
  // Of the layer's input, which a GELU made.
  void backward_gelu(train::Kernels& kernels) const {
    kernels.linear_transposed_gelu(shape_, hidden_, weight_, x_, dx_, dx_);
  }
  void gradients(train::Kernels& kernels, bool with_bias) const {
    kernels.linear_gradients(shape_, x_, hidden_, {dweight_, false},
                             {with_bias ? dbias_ : TensorView(), false});
  }

 private:
  KernelTensors tensors_;
  const train::LinearShape shape_;
  const TensorView x_;
  const TensorView dx_;
  const TensorView hidden_;
  const TensorView active_;
  const TensorView weight_;
  const TensorView dweight_;
  const TensorView bias_;
  const TensorView dbias_;
};

// What GELU and a bias's gradient cost beside their products, which may have them as epilogues.
void show_products(Device& device, train::Kernels& kernels, int64_t rows, RateTable& table) {
  const Linear layer(device, kernels.activation_dtype(),
                     {.rows = rows, .in = kWidth, .out = 4 * kWidth});
  const auto product = [&] { layer.forward(kernels); };
  const auto with_gelu = [&] { layer.forward_gelu(kernels); };
  const auto weights_alone = [&] { layer.gradients(kernels, false); };
  const auto both = [&] { layer.gradients(kernels, true); };
  table.show_ms("product", product);
  table.show_ms("product and GELU", with_gelu);
  table.show_ms("weight gradient", weights_alone);
  table.show_ms("weight and bias gradients", both);
  const double bytes = layer.hidden_nbytes();
  table.show_added("what GELU adds", 2 * bytes, product, with_gelu);
  table.show_added("what the bias gradient adds", bytes, weights_alone, both);
}

// Epilogues of products beside kernels of their own, for `train --epilogues`, in the layers of
// GPT-2's blocks of several widths.
void show_epilogues(Device& device, const train::KernelOptions& options, int64_t numel,
                    RateTable& table) {
  train::KernelOptions without = options;
  // The CPU, in a trial, has neither.
  if (!device.is_host()) without.gelu_epilogue = without.bias_gradient_epilogue = false;
  const auto fused = train::make_kernels(device, options);
  const auto separate = train::make_kernels(device, without);
  for (const int64_t width : {kWidth, int64_t{1600}, int64_t{4096}}) {
    if (width > kWidth && width * width > numel) continue;  // a trial
    const int64_t rows = std::max<int64_t>(1, numel / 16 / width);
    const auto show = [&](std::string_view what, const train::LinearShape& shape,
                          const std::function<void(const Linear&, train::Kernels&)>& call) {
      const Linear layer(device, fused->activation_dtype(), shape);
      table.show_choice(
          fmt::format("{}, {} x {} to {}", what, rows, shape.in, shape.out),
          [&] { call(layer, *fused); }, [&] { call(layer, *separate); });
    };
    show("GELU", {.rows = rows, .in = width, .out = 4 * width},
         [](const Linear& layer, train::Kernels& kernels) { layer.forward_gelu(kernels); });
    show("GELU backward", {.rows = rows, .in = 4 * width, .out = width},
         [](const Linear& layer, train::Kernels& kernels) { layer.backward_gelu(kernels); });
    for (const auto& [in, out] : {std::pair{width, 3 * width}, std::pair{width, width},
                                  std::pair{width, 4 * width}, std::pair{4 * width, width}}) {
      show("bias gradient", {.rows = rows, .in = in, .out = out},
           [](const Linear& layer, train::Kernels& kernels) { layer.gradients(kernels, true); });
    }
  }
}

}  // namespace

void show_train_kernels(Device& device, int64_t numel, RateTable& table) {
  const train::KernelOptions options{.dtype = DType::bf16};
  const auto kernels = train::make_kernels(device, options);
  const int64_t rows = std::max<int64_t>(1, numel / kWidth);
  show_layer_norm(device, *kernels, rows, table);
  show_cross_entropy(device, *kernels, std::max<int64_t>(1, numel / kVocabulary), table);
  show_embedding(device, *kernels, rows, table);
  show_products(device, *kernels, std::max<int64_t>(1, rows / 4), table);
  show_epilogues(device, options, numel, table);
}

}  // namespace zerorun::bench
