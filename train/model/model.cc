#include "train/model/model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/observers.h"

namespace zerorun::train {

namespace {

// Writes the rows sorted by token, then the index where the rows of each token begin and the end of
// the last. Returns the number of distinct tokens.
int64_t write_order(std::span<const int32_t> tokens, int32_t* to) {
  const std::span rows(to, tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  const auto token_of = [&](int32_t row) { return tokens[static_cast<size_t>(row)]; };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](int32_t a, int32_t b) { return token_of(a) < token_of(b); });
  int32_t* const begins = to + tokens.size();
  int64_t distinct = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && token_of(rows[i]) == token_of(rows[i - 1])) continue;
    begins[distinct++] = static_cast<int32_t>(i);
  }
  begins[distinct] = static_cast<int32_t>(rows.size());
  return distinct;
}

// The host's cores have nothing to do beside the caller on which they could sort.
std::unique_ptr<CpuStream> make_sorter(Device& device) {
  return device.is_host() ? make_inline_stream() : make_worker_stream("zr-token-order");
}

ModelOptions with_logits_rows(ModelOptions options, int64_t vocabulary, const Kernels& kernels) {
  const int64_t rows = options.micro_batch * options.seq_len;
  const int64_t row_nbytes =
      kernels.logits_stride(vocabulary) * static_cast<int64_t>(size_of(kernels.activation_dtype()));
  const int64_t most =
      static_cast<int64_t>(logits_rows(static_cast<double>(rows), static_cast<double>(row_nbytes)));
  options.logits_rows = options.logits_rows > 0 ? std::min(options.logits_rows, rows) : most;
  return options;
}

int32_t* tokens_in(const Buffer& buffer) { return reinterpret_cast<int32_t*>(buffer.data()); }

}  // namespace

TokenBatch::TokenBatch(Device& device, int64_t max_tokens)
    : TokenBatch(device, max_tokens, make_sorter(device)) {}

TokenBatch::TokenBatch(Device& device, int64_t max_tokens, std::unique_ptr<CpuStream> sorter)
    : device_(device),
      buffer_(device.allocate(static_cast<size_t>(4 * max_tokens + 1) * sizeof(int32_t),
                              MemoryCategory::activations)),
      tokens_(tokens_in(buffer_)),
      sorter_(std::move(sorter)) {
  for (Staging& staging : staging_) staging.memory = device.allocate_pinned(buffer_.nbytes());
}

void TokenBatch::upload(const Batch& batch) {
  count_ = batch.tokens.size();
  ZR_CHECK((4 * count_ + 1) * sizeof(int32_t) <= buffer_.nbytes(),
           "{} tokens in a buffer of {} bytes", count_, buffer_.nbytes());
  staged_ = &staging_[next_];
  next_ = (next_ + 1) % staging_.size();
  for (const Event* event : {&staged_->sorted, &staged_->read}) {
    if (!event->ready()) event->synchronize();
  }
  int32_t* const host = tokens_in(staged_->memory);
  std::copy(batch.tokens.begin(), batch.tokens.end(), host);
  std::copy(batch.targets.begin(), batch.targets.end(), host + count_);
  transfer(0, count_ + batch.targets.size());
  if (batch.targets.empty()) return;
  sorter_->submit([host, count = count_, staged = staged_] {
    staged->distinct = write_order({host, count}, host + 2 * count);
  });
  staged_->sorted = sorter_->record();
}

void TokenBatch::transfer(size_t begin, size_t end) {
  Stream& stream = device_.inline_stream();
  device_.upload(
      stream, tokens_in(staged_->memory) + begin,
      view_of(buffer_, DType::uint8, static_cast<int64_t>((end - begin) * sizeof(int32_t)),
              begin * sizeof(int32_t)));
  staged_->read = stream.record();
}

TokenOrder TokenBatch::order() {
  staged_->sorted.synchronize();
  const int64_t distinct = staged_->distinct;
  transfer(2 * count_, 3 * count_ + static_cast<size_t>(distinct) + 1);
  return {tokens_ + 2 * count_, tokens_ + 3 * count_, distinct};
}

Model::Model(const GptConfig& config, const ModelOptions& options, ParameterAccess& parameters,
             Device& device, Kernels& kernels)
    : config_(config),
      options_(with_logits_rows(options, config.vocabulary, kernels)),
      parameters_(parameters),
      device_(device),
      kernels_(kernels),
      ids_{parameters.module_id("embeddings"),
           parameters.parameter_id("transformer.wte.weight"),
           parameters.parameter_id("transformer.wpe.weight"),
           parameters.module_id("ln_f"),
           parameters.parameter_id("transformer.ln_f.weight"),
           parameters.parameter_id("transformer.ln_f.bias")},
      batch_(device, max_rows()),
      scratch_(device, config, kernels.activation_dtype(), max_rows()),
      moments_(device, DType::fp32, max_rows(), 2),
      logits_(device, kernels.activation_dtype(), options_.logits_rows, logits_stride()) {
  ZR_CHECK(options.seq_len > 0 && options.seq_len <= config.positions,
           "sequences of {} tokens in a model of {} positions", options.seq_len, config.positions);
  const DType dtype = kernels.activation_dtype();
  for (int64_t layer = 0; layer <= config.layers; ++layer) {
    residual_.emplace_back(device, dtype, max_rows(), config.width);
    if (layer == config.layers) break;
    blocks_.emplace_back(config, layer, parameters, kernels, scratch_);
    if (layer == 0 || !options.recompute) kept_.emplace_back(device, config, dtype, max_rows());
  }
}

Rows Model::rows_of(const Batch& batch) const {
  const int64_t count = std::ssize(batch.tokens);
  ZR_CHECK(count > 0 && count % options_.seq_len == 0 && count <= max_rows() &&
               batch.targets.size() == batch.tokens.size(),
           "a batch of {} tokens and {} targets for sequences of {}", count, batch.targets.size(),
           options_.seq_len);
  return {count / options_.seq_len, options_.seq_len, 0};
}

void Model::forward_blocks(const Rows& rows) {
  {
    const Gathered gathered(parameters_, ids_.embeddings);
    kernels_.embed({batch_.tokens() + rows.first, rows.count(),
                    rows.batch == 1 ? rows.count() : rows.seq_len, rows.first, config_.width},
                   parameters_.parameter(ids_.wte), parameters_.parameter(ids_.wpe),
                   residual_[0].rows(rows.first, rows.count()));
  }
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    const Gathered gathered(parameters_, blocks_[layer].module());
    blocks_[layer].forward(rows, residual_[layer].all(), kept(layer), residual_[layer + 1].all());
  }
}

TensorView Model::normalize(const Rows& rows) {
  const TensorView normal = scratch_.normal.first(rows.count());
  kernels_.layer_norm(norm_shape(rows), residual_.back().rows(rows.first, rows.count()),
                      parameters_.parameter(ids_.gain), parameters_.parameter(ids_.bias),
                      moments_.first(rows.count()), normal);
  return normal;
}

void Model::in_pieces(const Rows& rows, TensorView normal, TensorView wte, const UseLogits& use) {
  for (int64_t begin = 0; begin < rows.count(); begin += options_.logits_rows) {
    const int64_t count = std::min(options_.logits_rows, rows.count() - begin);
    const TensorView x = normal.slice(begin * config_.width, count * config_.width);
    const TensorView logits = logits_.first(count);
    kernels_.linear_transposed(head_shape(count), x, wte, logits);
    use(begin, count, x, logits);
  }
}

void Model::head_and_norm_backward(const Rows& rows, float loss_scale) {
  const Gathered gathered(parameters_, ids_.norm);
  const int64_t count = rows.count();
  const TensorView normal = normalize(rows);
  {
    const Gathered embeddings(parameters_, ids_.embeddings);
    const TensorView wte = parameters_.parameter(ids_.wte);
    GradientView gradient = parameters_.gradient(ids_.wte);
    in_pieces(rows, normal, wte, [&](int64_t begin, int64_t some, TensorView x, TensorView logits) {
      kernels_.cross_entropy_gradient(logits_shape(some, count), batch_.targets() + begin,
                                      loss_scale, logits);
      kernels_.linear_gradients(head_shape(some), logits, x, gradient, {});
      gradient.accumulate = true;
      kernels_.linear(head_shape(some), logits, wte, {}, {}, scratch_.dnormal.rows(begin, some));
    });
  }
  kernels_.layer_norm_backward(
      norm_shape(rows),
      {residual_.back().first(count), moments_.first(count), parameters_.parameter(ids_.gain)},
      scratch_.dnormal.first(count),
      {{scratch_.dx.first(count), false},
       parameters_.gradient(ids_.gain),
       parameters_.gradient(ids_.bias)});
  parameters_.grad_ready(ids_.gain);
  parameters_.grad_ready(ids_.bias);
}

void Model::forward_backward(const Batch& batch, double loss_scale) {
  const Rows rows = rows_of(batch);
  const TensorView dx = scratch_.dx.first(rows.count());
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
                          batch_.order(), dx, parameters_.gradient(ids_.wte),
                          parameters_.gradient(ids_.wpe));
  parameters_.grad_ready(ids_.wte);
  parameters_.grad_ready(ids_.wpe);
}

double Model::loss(const Batch& batch) {
  const Rows rows = rows_of(batch);
  batch_.upload(batch);
  const TensorView normal = forward(rows);
  const Gathered gathered(parameters_, ids_.embeddings);
  const TensorView wte = parameters_.parameter(ids_.wte);
  in_pieces(rows, normal, wte, [&](int64_t begin, int64_t count, TensorView, TensorView logits) {
    kernels_.cross_entropy_gradient(logits_shape(count, rows.count()), batch_.targets() + begin,
                                    1.0F, logits);
  });
  return kernels_.take_loss();
}

std::span<const float> Model::logits(std::span<const int32_t> tokens, int64_t first) {
  const int64_t count = std::ssize(tokens);
  ZR_CHECK(count <= options_.seq_len && first >= 0 && first < count,
           "logits of tokens {} to {} of a model for {}", first, count, options_.seq_len);
  // Blocks that are recomputed do not keep keys and values.
  const int64_t start = options_.recompute ? 0 : first;
  batch_.upload({tokens, {}});
  const Rows rows{1, count, start};
  const TensorView normal = forward(rows);
  const Gathered gathered(parameters_, ids_.embeddings);

  Stream& stream = device_.inline_stream();
  const int64_t vocabulary = config_.vocabulary;
  const Activation wide(device_, DType::fp32, 1, vocabulary);
  host_logits_.resize(static_cast<size_t>((count - first) * vocabulary));
  const auto keep = [&](int64_t begin, int64_t pieces, TensorView, TensorView logits) {
    for (int64_t row = std::max(begin, first - start); row < begin + pieces; ++row) {
      const TensorView own = logits.slice((row - begin) * logits_stride(), vocabulary);
      device_.cast(stream, own, wide.all());
      device_.download(stream, wide.all(),
                       host_logits_.data() + (row - (first - start)) * vocabulary);
    }
  };
  in_pieces(rows, normal, parameters_.parameter(ids_.wte), keep);
  stream.synchronize();
  return host_logits_;
}

TensorView Model::forward(const Rows& rows) {
  forward_blocks(rows);
  const Gathered gathered(parameters_, ids_.norm);
  return normalize(rows);
}

double measure_peak_flops(Device& device, Kernels& kernels, DType dtype) {
  constexpr int64_t kMaxSide = 4096;
  constexpr int kRepetitions = 3;
  constexpr double kLongEnough = 0.02;  // minimum time of a product in seconds
  Stream& stream = device.inline_stream();
  double peak = 0.0;
  double seconds = 0.0;
  for (int64_t side = 256; side <= kMaxSide && seconds < kLongEnough; side *= 2) {
    const Activation x(device, kernels.activation_dtype(), side, side);
    const Activation weight(device, dtype, side, side);
    const Activation y(device, kernels.activation_dtype(), side, side);
    device.fill(stream, x.all(), 0.5F);
    device.fill(stream, weight.all(), 0.5F);
    for (int i = 0; i < kRepetitions; ++i) {
      stream.synchronize();
      const double begin = steady_seconds();
      kernels.linear({side, side, side}, x.all(), weight.all(), {}, {}, y.all());
      stream.synchronize();
      seconds = steady_seconds() - begin;
      const auto edge = static_cast<double>(side);
      peak = std::max(peak, 2 * edge * edge * edge / seconds);
    }
  }
  return peak;
}

}  // namespace zerorun::train
