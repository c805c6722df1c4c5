#include <fmt/format.h>

#include "train/model/model.h"

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
      attention_in_(layer_of("attn.c_attn", config.width, 3 * config.width)),
      attention_out_(layer_of("attn.c_proj", config.width, config.width)),
      ln_2_(layer_of("ln_2")),
      feed_forward_in_(layer_of("mlp.c_fc", config.width, config.inner)),
      feed_forward_out_(layer_of("mlp.c_proj", config.inner, config.width)) {}

Block::Layer Block::layer_of(std::string_view name, int64_t in, int64_t out) const {
  return {parameters_.parameter_id(fmt::format("{}{}.weight", prefix_, name)),
          parameters_.parameter_id(fmt::format("{}{}.bias", prefix_, name)), in, out};
}

void Block::normalize(const Layer& layer, int64_t rows, TensorView x, TensorView moments,
                      TensorView y) {
  kernels_.layer_norm(norm_shape(rows), x, weight(layer), bias(layer), moments, y);
}

void Block::linear(const Layer& layer, int64_t rows, TensorView x, TensorView residual,
                   TensorView y) {
  kernels_.linear(layer.shape(rows), x, weight(layer), bias(layer), residual, y);
}

void Block::linear_gradients(const Layer& layer, int64_t rows, TensorView x, TensorView dy) {
  kernels_.linear_gradients(layer.shape(rows), x, dy, parameters_.gradient(layer.weight),
                            parameters_.gradient(layer.bias));
  complete_gradients(layer);
}

void Block::norm_backward(const Layer& layer, int64_t rows, TensorView x, TensorView moments,
                          TensorView dx) {
  kernels_.layer_norm_backward(
      norm_shape(rows), {x, moments, weight(layer)}, scratch_.dnormal.first(rows),
      {{dx, true}, parameters_.gradient(layer.weight), parameters_.gradient(layer.bias)});
  complete_gradients(layer);
}

void Block::complete_gradients(const Layer& layer) {
  parameters_.grad_ready(layer.weight);
  parameters_.grad_ready(layer.bias);
}

TensorView Block::attend(const Rows& rows, TensorView x, BlockActivations& kept) {
  const int64_t width = config_.width;
  const int64_t first = rows.first;
  const int64_t count = rows.count();
  const TensorView normal = scratch_.normal.first(count);
  const TensorView own_x = x.slice(first * width, count * width);
  const TensorView middle = kept.middle.rows(first, count);
  normalize(ln_1_, count, own_x, kept.moments_1.rows(first, count), normal);
  linear(attention_in_, count, normal, {}, kept.qkv.rows(first, count));
  kernels_.attention({rows.batch, rows.seq_len, first, config_.heads, width}, kept.qkv.all(),
                     kept.log_sum.all(), kept.attended.all());
  linear(attention_out_, count, kept.attended.rows(first, count), own_x, middle);
  normalize(ln_2_, count, middle, kept.moments_2.rows(first, count), normal);
  return normal;
}

void Block::forward_kept(const Rows& rows, TensorView x, BlockActivations& kept) {
  linear(feed_forward_in_, rows.count(), attend(rows, x, kept), {},
         kept.hidden.rows(rows.first, rows.count()));
}

void Block::forward(const Rows& rows, TensorView x, BlockActivations& kept, TensorView out) {
  const int64_t count = rows.count();
  const TensorView active = scratch_.active.first(count);
  kernels_.linear_gelu(feed_forward_in_.shape(count), attend(rows, x, kept),
                       weight(feed_forward_in_), bias(feed_forward_in_),
                       kept.hidden.rows(rows.first, count), active);
  linear(feed_forward_out_, count, active, kept.middle.rows(rows.first, count),
         out.slice(rows.first * config_.width, count * config_.width));
}

void Block::backward(const Rows& rows, TensorView x, const BlockActivations& kept, TensorView dx) {
  const int64_t count = rows.count();
  const TensorView normal = scratch_.normal.first(count);
  const TensorView dnormal = scratch_.dnormal.first(count);

  const TensorView active = scratch_.active.first(count);
  const TensorView dhidden = scratch_.wide.all().slice(0, count * config_.inner);
  const TensorView middle = kept.middle.first(count);
  const TensorView moments_2 = kept.moments_2.first(count);
  kernels_.linear_transposed_gelu(feed_forward_out_.shape(count), dx, weight(feed_forward_out_),
                                  kept.hidden.first(count), active, dhidden);
  linear_gradients(feed_forward_out_, count, active, dx);
  normalize(ln_2_, count, middle, moments_2, normal);
  linear_gradients(feed_forward_in_, count, normal, dhidden);
  kernels_.linear_transposed(feed_forward_in_.shape(count), dhidden, weight(feed_forward_in_),
                             dnormal);
  norm_backward(ln_2_, count, middle, moments_2, dx);

  const TensorView own_x = x.slice(0, count * config_.width);
  const TensorView dqkv = scratch_.wide.all().slice(0, 3 * count * config_.width);
  const TensorView attended = kept.attended.first(count);
  const TensorView moments_1 = kept.moments_1.first(count);
  kernels_.linear_transposed(attention_out_.shape(count), dx, weight(attention_out_), dnormal);
  linear_gradients(attention_out_, count, attended, dx);
  kernels_.attention_backward({rows.batch, rows.seq_len, 0, config_.heads, config_.width},
                              {kept.qkv.first(count), attended, kept.log_sum.first(count)}, dnormal,
                              dqkv);
  normalize(ln_1_, count, own_x, moments_1, normal);
  linear_gradients(attention_in_, count, normal, dqkv);
  kernels_.linear_transposed(attention_in_.shape(count), dqkv, weight(attention_in_), dnormal);
  norm_backward(ln_1_, count, own_x, moments_1, dx);
}

}  // namespace zerorun::train
