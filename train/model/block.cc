#include "train/model/block.h"

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

void Block::normalize(const Layer& layer, int64_t rows, TensorView x, TensorView moments,
                      TensorView y) {
  kernels_.layer_norm(norm_shape(rows), x, parameters_.parameter(layer.weight),
                      parameters_.parameter(layer.bias), moments, y);
}

void Block::linear(const Layer& layer, const LinearShape& shape, TensorView x, TensorView residual,
                   TensorView y) {
  kernels_.linear(shape, x, parameters_.parameter(layer.weight), parameters_.parameter(layer.bias),
                  residual, y);
}

void Block::linear_gradients(const Layer& layer, const LinearShape& shape, TensorView x,
                             TensorView dy) {
  kernels_.linear_gradients(shape, x, dy, parameters_.gradient(layer.weight),
                            parameters_.gradient(layer.bias));
  parameters_.grad_ready(layer.weight);
  parameters_.grad_ready(layer.bias);
}

void Block::norm_backward(const Layer& layer, int64_t rows, TensorView x, TensorView moments,
                          TensorView dx) {
  kernels_.layer_norm_backward(
      norm_shape(rows), {x, moments, parameters_.parameter(layer.weight)},
      scratch_.dnormal.first(rows * config_.width),
      {{dx, true}, parameters_.gradient(layer.weight), parameters_.gradient(layer.bias)});
  parameters_.grad_ready(layer.weight);
  parameters_.grad_ready(layer.bias);
}

TensorView Block::attend(const Rows& rows, TensorView x, BlockActivations& kept) {
  const int64_t width = config_.width;
  const int64_t first = rows.first;
  const int64_t count = rows.count();
  const TensorView normal = scratch_.normal.first(count * width);
  const TensorView own_x = x.slice(first * width, count * width);
  const TensorView middle = kept.middle.slice(first * width, count * width);
  normalize(ln_1_, count, own_x, kept.moments_1.slice(2 * first, 2 * count), normal);
  linear(attention_in_, {count, width, 3 * width}, normal, {},
         kept.qkv.slice(first * 3 * width, count * 3 * width));
  kernels_.attention({rows.batch, rows.seq_len, first, config_.heads, width}, kept.qkv.all(),
                     kept.log_sum.all(), kept.attended.all());
  linear(attention_out_, {count, width, width}, kept.attended.slice(first * width, count * width),
         own_x, middle);
  normalize(ln_2_, count, middle, kept.moments_2.slice(2 * first, 2 * count), normal);
  return normal;
}

void Block::forward_kept(const Rows& rows, TensorView x, BlockActivations& kept) {
  const LinearShape shape{rows.count(), config_.width, config_.inner};
  linear(feed_forward_in_, shape, attend(rows, x, kept), {},
         kept.hidden.slice(rows.first * config_.inner, rows.count() * config_.inner));
}

void Block::forward(const Rows& rows, TensorView x, BlockActivations& kept, TensorView out) {
  const int64_t count = rows.count();
  const int64_t width = config_.width;
  const int64_t inner = config_.inner;
  const TensorView active = scratch_.active.first(count * inner);
  kernels_.linear_gelu({count, width, inner}, attend(rows, x, kept),
                       parameters_.parameter(feed_forward_in_.weight),
                       parameters_.parameter(feed_forward_in_.bias),
                       kept.hidden.slice(rows.first * inner, count * inner), active);
  linear(feed_forward_out_, {count, inner, width}, active,
         kept.middle.slice(rows.first * width, count * width),
         out.slice(rows.first * width, count * width));
}

void Block::backward(const Rows& rows, TensorView x, const BlockActivations& kept, TensorView dx) {
  feed_forward_backward(rows.count(), kept, dx);
  attention_backward(rows, x, kept, dx);
}

void Block::feed_forward_backward(int64_t rows, const BlockActivations& kept, TensorView dx) {
  const LinearShape out{rows, config_.inner, config_.width};
  const LinearShape in{rows, config_.width, config_.inner};
  const TensorView active = scratch_.active.first(rows * config_.inner);
  const TensorView dhidden = scratch_.wide.first(rows * config_.inner);
  const TensorView normal = scratch_.normal.first(rows * config_.width);
  const TensorView middle = kept.middle.first(rows * config_.width);
  const TensorView moments = kept.moments_2.first(2 * rows);
  kernels_.linear_transposed_gelu(out, dx, parameters_.parameter(feed_forward_out_.weight),
                                  kept.hidden.first(rows * config_.inner), active, dhidden);
  linear_gradients(feed_forward_out_, out, active, dx);
  normalize(ln_2_, rows, middle, moments, normal);
  linear_gradients(feed_forward_in_, in, normal, dhidden);
  kernels_.linear_transposed(in, dhidden, parameters_.parameter(feed_forward_in_.weight),
                             scratch_.dnormal.first(rows * config_.width));
  norm_backward(ln_2_, rows, middle, moments, dx);
}

void Block::attention_backward(const Rows& rows, TensorView x, const BlockActivations& kept,
                               TensorView dx) {
  const int64_t count = rows.count();
  const int64_t numel = count * config_.width;
  const LinearShape out{count, config_.width, config_.width};
  const LinearShape in{count, config_.width, 3 * config_.width};
  const TensorView dattended = scratch_.dnormal.first(numel);
  const TensorView dqkv = scratch_.wide.first(3 * numel);
  const TensorView normal = scratch_.normal.first(numel);
  const TensorView moments = kept.moments_1.first(2 * count);
  kernels_.linear_transposed(out, dx, parameters_.parameter(attention_out_.weight), dattended);
  linear_gradients(attention_out_, out, kept.attended.first(numel), dx);
  kernels_.attention_backward({rows.batch, rows.seq_len, 0, config_.heads, config_.width},
                              {kept.qkv.first(3 * numel), kept.attended.first(numel),
                               kept.log_sum.first(count * config_.heads)},
                              dattended, dqkv);
  normalize(ln_1_, count, x.slice(0, numel), moments, normal);
  linear_gradients(attention_in_, in, normal, dqkv);
  kernels_.linear_transposed(in, dqkv, parameters_.parameter(attention_in_.weight),
                             scratch_.dnormal.first(numel));
  norm_backward(ln_1_, count, x.slice(0, numel), moments, dx);
}

}  // namespace zerorun::train
