#include "examples/train/model.h"

#include <algorithm>

#include "core/check.h"

namespace zerorun::train {

Model::Model(const GptConfig& config, const ModelOptions& options, ParameterAccess& parameters,
             Device& device, Kernels& kernels)
    : config_(config),
      options_(options),
      parameters_(parameters),
      kernels_(kernels),
      embeddings_{parameters.module_id("embeddings"),
                  parameters.parameter_id("transformer.wte.weight"),
                  parameters.parameter_id("transformer.wpe.weight")},
      norm_{parameters.module_id("ln_f"), parameters.parameter_id("transformer.ln_f.weight"),
            parameters.parameter_id("transformer.ln_f.bias")},
      scratch_(device, config, options.micro_batch * options.seq_len),
      moments_(device, 2 * options.micro_batch * options.seq_len),
      logits_(device, options.micro_batch * options.seq_len * config.vocabulary),
      dx_(device, options.micro_batch * options.seq_len * config.width) {
  ZR_CHECK(options.seq_len > 0 && options.seq_len <= config.positions,
           "sequences of {} tokens in a model of {} positions", options.seq_len, config.positions);
  const int64_t rows = options.micro_batch * options.seq_len;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    blocks_.emplace_back(config, layer, parameters, kernels, scratch_);
    residual_.emplace_back(device, rows * config.width);
    if (layer == 0 || !options.recompute) kept_.emplace_back(device, config, rows);
  }
  residual_.emplace_back(device, rows * config.width);
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

void Model::forward_blocks(const Rows& rows, std::span<const int32_t> tokens) {
  {
    const Gathered gathered(parameters_, embeddings_.module);
    kernels_.embed({tokens.subspan(static_cast<size_t>(rows.first)),
                    rows.batch == 1 ? rows.count() : rows.seq_len, rows.first, config_.width},
                   parameters_.parameter(embeddings_.wte), parameters_.parameter(embeddings_.wpe),
                   residual_[0].data() + rows.first * config_.width);
  }
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    const Gathered gathered(parameters_, blocks_[layer].module());
    blocks_[layer].forward(rows, residual_[layer].data(), kept(layer), residual_[layer + 1].data());
  }
}

const float* Model::normalize(const Rows& rows) {
  kernels_.layer_norm({rows.count(), config_.width, config_.layer_norm_epsilon},
                      residual_.back().data() + rows.first * config_.width,
                      parameters_.parameter(norm_.gain), parameters_.parameter(norm_.bias),
                      moments_.data(), scratch_.normal.data());
  return scratch_.normal.data();
}

double Model::head(const Rows& rows, const float* normal, std::span<const int32_t> targets,
                   float loss_scale) {
  const LinearShape shape{rows.count(), config_.vocabulary, config_.width};
  const Gathered gathered(parameters_, embeddings_.module);
  const TensorView wte = parameters_.parameter(embeddings_.wte);
  kernels_.linear_transposed(shape, normal, wte, logits_.data());
  const double loss = kernels_.cross_entropy_gradient(rows.count(), config_.vocabulary, targets,
                                                      loss_scale, logits_.data());
  kernels_.linear_weight_gradient(shape, logits_.data(), normal,
                                  parameters_.gradient(embeddings_.wte));
  kernels_.linear(shape, logits_.data(), wte, {}, nullptr, scratch_.dnormal.data());
  return loss;
}

double Model::head_and_norm_backward(const Rows& rows, std::span<const int32_t> targets,
                                     float loss_scale) {
  const Gathered gathered(parameters_, norm_.module);
  const double loss = head(rows, normalize(rows), targets, loss_scale);
  std::fill_n(dx_.data(), rows.count() * config_.width, 0.0F);
  kernels_.layer_norm_backward(
      {rows.count(), config_.width, config_.layer_norm_epsilon},
      {residual_.back().data(), moments_.data(), parameters_.parameter(norm_.gain)},
      scratch_.dnormal.data(),
      {dx_.data(), parameters_.gradient(norm_.gain), parameters_.gradient(norm_.bias)});
  parameters_.grad_ready(norm_.gain);
  parameters_.grad_ready(norm_.bias);
  return loss;
}

double Model::forward_backward(const Batch& batch, double loss_scale) {
  const Rows rows = rows_of(batch);
  forward_blocks(rows, batch.tokens);
  const double loss = head_and_norm_backward(rows, batch.targets, static_cast<float>(loss_scale));
  for (size_t layer = blocks_.size(); layer-- > 0;) {
    const Gathered gathered(parameters_, blocks_[layer].module());
    const float* const x = residual_[layer].data();
    if (options_.recompute) blocks_[layer].forward_kept(rows, x, kept(layer));
    blocks_[layer].backward(rows, x, kept(layer), dx_.data());
  }
  kernels_.embed_backward({batch.tokens, rows.seq_len, 0, config_.width}, dx_.data(),
                          parameters_.gradient(embeddings_.wte),
                          parameters_.gradient(embeddings_.wpe));
  parameters_.grad_ready(embeddings_.wte);
  parameters_.grad_ready(embeddings_.wpe);
  return loss;
}

double Model::loss(const Batch& batch) {
  const Rows rows = rows_of(batch);
  logits_of(rows, batch.tokens);
  return kernels_.cross_entropy(rows.count(), config_.vocabulary, batch.targets, logits_.data());
}

std::span<const float> Model::logits(std::span<const int32_t> tokens, int64_t first) {
  const int64_t count = std::ssize(tokens);
  ZR_CHECK(count <= options_.seq_len && first >= 0 && first < count,
           "logits of tokens {} to {} of a model for {}", first, count, options_.seq_len);
  // Recomputed blocks keep no keys and values.
  const int64_t start = options_.recompute ? 0 : first;
  logits_of({1, count, start}, tokens);
  const auto vocabulary = static_cast<size_t>(config_.vocabulary);
  return {logits_.data() + static_cast<size_t>(first - start) * vocabulary,
          static_cast<size_t>(count - first) * vocabulary};
}

void Model::logits_of(const Rows& rows, std::span<const int32_t> tokens) {
  forward_blocks(rows, tokens);
  const float* normal = nullptr;
  {
    const Gathered gathered(parameters_, norm_.module);
    normal = normalize(rows);
  }
  const Gathered gathered(parameters_, embeddings_.module);
  kernels_.linear_transposed({rows.count(), config_.vocabulary, config_.width}, normal,
                             parameters_.parameter(embeddings_.wte), logits_.data());
}

}  // namespace zerorun::train
