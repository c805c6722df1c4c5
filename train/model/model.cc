#include "train/model/model.h"

#include <algorithm>

#include "core/check.h"

namespace zerorun::train {

Model::Model(const GptConfig& config, const ModelOptions& options, ParameterAccess& parameters,
             Device& device, Kernels& kernels)
    : config_(config),
      options_(options),
      parameters_(parameters),
      device_(device),
      kernels_(kernels),
      embeddings_{parameters.module_id("embeddings"),
                  parameters.parameter_id("transformer.wte.weight"),
                  parameters.parameter_id("transformer.wpe.weight")},
      norm_{parameters.module_id("ln_f"), parameters.parameter_id("transformer.ln_f.weight"),
            parameters.parameter_id("transformer.ln_f.bias")},
      batch_(device, options.micro_batch * options.seq_len),
      scratch_(device, config, kernels.activation_dtype(), options.micro_batch * options.seq_len),
      head_(device, kernels.logits_stride(config.vocabulary), kernels.activation_dtype(),
            options.micro_batch * options.seq_len),
      dx_(device, kernels.activation_dtype(),
          options.micro_batch * options.seq_len * config.width) {
  ZR_CHECK(options.seq_len > 0 && options.seq_len <= config.positions,
           "sequences of {} tokens in a model of {} positions", options.seq_len, config.positions);
  const int64_t rows = options.micro_batch * options.seq_len;
  const DType dtype = kernels.activation_dtype();
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    blocks_.emplace_back(config, layer, parameters, kernels, scratch_);
    residual_.emplace_back(device, dtype, rows * config.width);
    if (layer == 0 || !options.recompute) kept_.emplace_back(device, config, dtype, rows);
  }
  residual_.emplace_back(device, dtype, rows * config.width);
}

BlockActivations& Model::kept(size_t layer) { return kept_[options_.recompute ? 0 : layer]; }

Rows Model::rows_of(const Batch& batch) const {
  const int64_t count = std::ssize(batch.tokens);
  ZR_CHECK(count > 0 && count % options_.seq_len == 0 &&
               count <= options_.micro_batch * options_.seq_len &&
               batch.targets.size() == batch.tokens.size(),
           "a batch of {} tokens and {} targets for sequences of {}", count, batch.targets.size(),
           options_.seq_len);
  return {count / options_.seq_len, options_.seq_len, 0};
}

void Model::forward_blocks(const Rows& rows) {
  {
    const Gathered gathered(parameters_, embeddings_.module);
    kernels_.embed({batch_.tokens() + rows.first, rows.count(),
                    rows.batch == 1 ? rows.count() : rows.seq_len, rows.first, config_.width},
                   parameters_.parameter(embeddings_.wte), parameters_.parameter(embeddings_.wpe),
                   residual_[0].slice(rows.first * config_.width, rows.count() * config_.width));
  }
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    const Gathered gathered(parameters_, blocks_[layer].module());
    blocks_[layer].forward(rows, residual_[layer].all(), kept(layer), residual_[layer + 1].all());
  }
}

TensorView Model::normalize(const Rows& rows) {
  const int64_t numel = rows.count() * config_.width;
  const TensorView normal = scratch_.normal.first(numel);
  kernels_.layer_norm({rows.count(), config_.width, config_.layer_norm_epsilon},
                      residual_.back().slice(rows.first * config_.width, numel),
                      parameters_.parameter(norm_.gain), parameters_.parameter(norm_.bias),
                      head_.moments.first(2 * rows.count()), normal);
  return normal;
}

void Model::head(const Rows& rows, TensorView normal, float loss_scale) {
  const TensorView logits = head_.logits.first(rows.count() * head_.stride);
  const Gathered gathered(parameters_, embeddings_.module);
  const TensorView wte = parameters_.parameter(embeddings_.wte);
  kernels_.linear_transposed(head_shape(rows), normal, wte, logits);
  kernels_.cross_entropy_gradient(logits_shape(rows), batch_.targets(), loss_scale, logits);
  kernels_.linear_gradients(head_shape(rows), logits, normal, parameters_.gradient(embeddings_.wte),
                            {});
  kernels_.linear(head_shape(rows), logits, wte, {}, {}, scratch_.dnormal.first(normal.numel));
}

void Model::head_and_norm_backward(const Rows& rows, float loss_scale) {
  const Gathered gathered(parameters_, norm_.module);
  const int64_t numel = rows.count() * config_.width;
  head(rows, normalize(rows), loss_scale);
  kernels_.layer_norm_backward(
      {rows.count(), config_.width, config_.layer_norm_epsilon},
      {residual_.back().first(numel), head_.moments.first(2 * rows.count()),
       parameters_.parameter(norm_.gain)},
      scratch_.dnormal.first(numel),
      {{dx_.first(numel), false},
       parameters_.gradient(norm_.gain),
       parameters_.gradient(norm_.bias)});
  parameters_.grad_ready(norm_.gain);
  parameters_.grad_ready(norm_.bias);
}

void Model::forward_backward(const Batch& batch, double loss_scale) {
  const Rows rows = rows_of(batch);
  const TensorView dx = dx_.first(rows.count() * config_.width);
  batch_.upload(batch);
  forward_blocks(rows);
  head_and_norm_backward(rows, static_cast<float>(loss_scale));
  for (size_t layer = blocks_.size(); layer-- > 0;) {
    const Gathered gathered(parameters_, blocks_[layer].module());
    const TensorView x = residual_[layer].all();
    if (options_.recompute) blocks_[layer].forward_kept(rows, x, kept(layer));
    blocks_[layer].backward(rows, x, kept(layer), dx);
  }
  kernels_.embed_backward({batch_.tokens(), rows.count(), rows.seq_len, 0, config_.width},
                          batch_.order(), dx, parameters_.gradient(embeddings_.wte),
                          parameters_.gradient(embeddings_.wpe));
  parameters_.grad_ready(embeddings_.wte);
  parameters_.grad_ready(embeddings_.wpe);
}

double Model::loss(const Batch& batch) {
  const Rows rows = rows_of(batch);
  batch_.upload(batch);
  logits_of(rows);
  kernels_.cross_entropy(logits_shape(rows), batch_.targets(),
                         head_.logits.first(rows.count() * head_.stride));
  return kernels_.take_loss();
}

std::span<const float> Model::logits(std::span<const int32_t> tokens, int64_t first) {
  const int64_t count = std::ssize(tokens);
  ZR_CHECK(count <= options_.seq_len && first >= 0 && first < count,
           "logits of tokens {} to {} of a model for {}", first, count, options_.seq_len);
  // Blocks that are recomputed do not keep keys and values.
  const int64_t start = options_.recompute ? 0 : first;
  batch_.upload({tokens, {}});
  logits_of({1, count, start});

  Stream& stream = device_.inline_stream();
  const int64_t vocabulary = config_.vocabulary;
  const Activation wide(device_, DType::fp32, (count - first) * vocabulary);
  for (int64_t row = first; row < count; ++row) {
    device_.cast(stream, head_.logits.slice((row - start) * head_.stride, vocabulary),
                 wide.slice((row - first) * vocabulary, vocabulary));
  }
  host_logits_.resize(static_cast<size_t>((count - first) * vocabulary));
  device_.download(stream, wide.all(), host_logits_.data());
  stream.synchronize();
  return host_logits_;
}

void Model::logits_of(const Rows& rows) {
  forward_blocks(rows);
  TensorView normal;
  {
    const Gathered gathered(parameters_, norm_.module);
    normal = normalize(rows);
  }
  const Gathered gathered(parameters_, embeddings_.module);
  kernels_.linear_transposed(head_shape(rows), normal, parameters_.parameter(embeddings_.wte),
                             head_.logits.first(rows.count() * head_.stride));
}

}  // namespace zerorun::train
