#include "examples/train/block.h"

#include <fmt/format.h>

namespace zerorun::train {

Block::Block(const GptConfig& config, int64_t layer, ParameterAccess& parameters, Kernels& kernels,
             Scratch& scratch)
    : config_(config),
      parameters_(parameters),
      kernels_(kernels),
      scratch_(scratch),
      prefix_(fmt::format("transformer.h.{}.", layer)),
      module_(parameters.module_id(fmt::format("h.{}", layer))),
      ln_1_(layer_of("ln_1")),
      attention_in_(layer_of("attn.c_attn")),
      attention_out_(layer_of("attn.c_proj")),
      ln_2_(layer_of("ln_2")),
      feed_forward_in_(layer_of("mlp.c_fc")),
      feed_forward_out_(layer_of("mlp.c_proj")) {}

Block::Layer Block::layer_of(const std::string& name) const {
  return {parameters_.parameter_id(prefix_ + name + ".weight"),
          parameters_.parameter_id(prefix_ + name + ".bias")};
}

void Block::normalize(const Layer& layer, int64_t rows, const float* x, float* moments, float* y) {
  kernels_.layer_norm({rows, config_.width, config_.layer_norm_epsilon}, x,
                      parameters_.parameter(layer.weight), parameters_.parameter(layer.bias),
                      moments, y);
}

void Block::linear(const Layer& layer, const LinearShape& shape, const float* x,
                   const float* residual, float* y) {
  kernels_.linear(shape, x, parameters_.parameter(layer.weight), parameters_.parameter(layer.bias),
                  residual, y);
}

void Block::linear_gradients(const Layer& layer, const LinearShape& shape, const float* x,
                             const float* dy) {
  kernels_.linear_weight_gradient(shape, x, dy, parameters_.gradient(layer.weight));
  kernels_.bias_gradient(shape.rows, shape.out, dy, parameters_.gradient(layer.bias));
  parameters_.grad_ready(layer.weight);
  parameters_.grad_ready(layer.bias);
}

void Block::norm_backward(const Layer& layer, int64_t rows, const float* x, const float* moments,
                          float* dx) {
  kernels_.layer_norm_backward(
      {rows, config_.width, config_.layer_norm_epsilon},
      {x, moments, parameters_.parameter(layer.weight)}, scratch_.dnormal.data(),
      {dx, parameters_.gradient(layer.weight), parameters_.gradient(layer.bias)});
  parameters_.grad_ready(layer.weight);
  parameters_.grad_ready(layer.bias);
}

void Block::forward_kept(const Rows& rows, const float* x, BlockActivations& kept) {
  const int64_t width = config_.width;
  const int64_t first = rows.first;
  const int64_t count = rows.count();
  float* const normal = scratch_.normal.data() + first * width;
  float* const middle = kept.middle.data() + first * width;
  normalize(ln_1_, count, x + first * width, kept.moments_1.data() + 2 * first, normal);
  linear(attention_in_, {count, width, 3 * width}, normal, nullptr,
         kept.qkv.data() + first * 3 * width);
  kernels_.attention({rows.batch, rows.seq_len, first, config_.heads, width}, kept.qkv.data(),
                     kept.log_sum.data(), kept.attended.data());
  linear(attention_out_, {count, width, width}, kept.attended.data() + first * width,
         x + first * width, middle);
  normalize(ln_2_, count, middle, kept.moments_2.data() + 2 * first, normal);
  linear(feed_forward_in_, {count, width, config_.inner}, normal, nullptr,
         kept.hidden.data() + first * config_.inner);
}

void Block::forward(const Rows& rows, const float* x, BlockActivations& kept, float* out) {
  forward_kept(rows, x, kept);
  const int64_t begin = rows.first * config_.width;
  const int64_t count = rows.count();
  kernels_.gelu(count * config_.inner, kept.hidden.data() + rows.first * config_.inner,
                scratch_.active.data());
  linear(feed_forward_out_, {count, config_.inner, config_.width}, scratch_.active.data(),
         kept.middle.data() + begin, out + begin);
}

void Block::backward(const Rows& rows, const float* x, const BlockActivations& kept, float* dx) {
  feed_forward_backward(rows.count(), kept, dx);
  attention_backward(rows, x, kept, dx);
}

void Block::feed_forward_backward(int64_t rows, const BlockActivations& kept, float* dx) {
  const LinearShape out{rows, config_.inner, config_.width};
  const LinearShape in{rows, config_.width, config_.inner};
  float* const dhidden = scratch_.wide.data();
  kernels_.linear_transposed(out, dx, parameters_.parameter(feed_forward_out_.weight), dhidden);
  kernels_.gelu_backward(rows * config_.inner, kept.hidden.data(), scratch_.active.data(), dhidden);
  linear_gradients(feed_forward_out_, out, scratch_.active.data(), dx);
  normalize(ln_2_, rows, kept.middle.data(), kept.moments_2.data(), scratch_.normal.data());
  linear_gradients(feed_forward_in_, in, scratch_.normal.data(), dhidden);
  kernels_.linear_transposed(in, dhidden, parameters_.parameter(feed_forward_in_.weight),
                             scratch_.dnormal.data());
  norm_backward(ln_2_, rows, kept.middle.data(), kept.moments_2.data(), dx);
}

void Block::attention_backward(const Rows& rows, const float* x, const BlockActivations& kept,
                               float* dx) {
  const int64_t count = rows.count();
  const LinearShape out{count, config_.width, config_.width};
  const LinearShape in{count, config_.width, 3 * config_.width};
  float* const dattended = scratch_.dnormal.data();
  float* const dqkv = scratch_.wide.data();
  kernels_.linear_transposed(out, dx, parameters_.parameter(attention_out_.weight), dattended);
  linear_gradients(attention_out_, out, kept.attended.data(), dx);
  kernels_.attention_backward({rows.batch, rows.seq_len, 0, config_.heads, config_.width},
                              {kept.qkv.data(), kept.attended.data(), kept.log_sum.data()},
                              dattended, dqkv);
  normalize(ln_1_, count, x, kept.moments_1.data(), scratch_.normal.data());
  linear_gradients(attention_in_, in, scratch_.normal.data(), dqkv);
  kernels_.linear_transposed(in, dqkv, parameters_.parameter(attention_in_.weight),
                             scratch_.dnormal.data());
  norm_backward(ln_1_, count, x, kept.moments_1.data(), dx);
}

}  // namespace zerorun::train
