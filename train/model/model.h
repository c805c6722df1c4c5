#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/cpu/cpu_stream.h"
#include "train/model/activations.h"
#include "train/model/gpt_config.h"
#include "train/model/kernels.h"
#include "train/model/parameters.h"

namespace zerorun::train {

// Sequences of equal length, one after the other, with the target (the next token) of each token.
struct Batch {
  std::span<const int32_t> tokens;
  std::span<const int32_t> targets;
};

// The tokens on which the model works, in device memory. The caller does not wait for transfers.
// Beside a GPU a worker sorts the rows by token, which only the end of backward needs.
class TokenBatch {
 public:
  TokenBatch(Device& device, int64_t max_tokens);
  // `sorter`: the stream that sorts.
  TokenBatch(Device& device, int64_t max_tokens, std::unique_ptr<CpuStream> sorter);
  TokenBatch(const TokenBatch&) = delete;
  TokenBatch& operator=(const TokenBatch&) = delete;

  // Also sets targets, and lets the sorter begin, if `batch` has targets.
  void upload(const Batch& batch);

  const int32_t* tokens() const { return tokens_; }
  const int32_t* targets() const { return tokens_ + count_; }
  // The order of a batch that has targets; waits for the sorter.
  TokenOrder order();

 private:
  // Pinned memory of a batch, until the transfers have read it and the sorter is done with it.
  struct Staging {
    Buffer memory;
    int64_t distinct = 0;
    Event sorted;
    Event read;
  };
  // Transfers elements [begin, end) of what is staged.
  void transfer(size_t begin, size_t end);

  Device& device_;
  Buffer buffer_;
  std::array<Staging, 2> staging_;
  size_t next_ = 0;
  Staging* staged_ = nullptr;
  size_t count_ = 0;
  const int32_t* tokens_ = nullptr;
  const std::unique_ptr<CpuStream> sorter_;  // declared last: it ends before what it writes
};

// The rows of the token grid that a pass computes: all rows of `batch` sequences, or the rows from
// `first` on of a single sequence whose earlier rows were computed before.
struct Rows {
  int64_t batch = 1;
  int64_t seq_len = 0;
  int64_t first = 0;
  int64_t count() const { return batch * seq_len - first; }
};

// One transformer block: x + attention(norm(x)), then the same with the feed-forward part
// (Radford et al. 2019, "pre-norm").
class Block {
 public:
  Block(const GptConfig& config, int64_t layer, ParameterAccess& parameters, Kernels& kernels,
        Scratch& scratch);

  ModuleId module() const { return module_; }

  // The module must be gathered. `x` and `out` have all rows.
  void forward(const Rows& rows, TensorView x, BlockActivations& kept, TensorView out);
  // Recomputes only the activations that backward needs.
  void forward_kept(const Rows& rows, TensorView x, BlockActivations& kept);
  // `dx` is the gradient of `out` on entry and that of `x` on return. Completes the gradients of
  // the block's parameters.
  void backward(const Rows& rows, TensorView x, const BlockActivations& kept, TensorView dx);

 private:
  struct Layer {  // a linear layer, or a normalisation, which needs no sizes
    ParameterId weight = 0;
    ParameterId bias = 0;
    int64_t in = 0;
    int64_t out = 0;
    LinearShape shape(int64_t rows) const { return {rows, in, out}; }
  };
  Layer layer_of(std::string_view name, int64_t in = 0, int64_t out = 0) const;
  LayerNormShape norm_shape(int64_t rows) const {
    return {rows, config_.width, config_.layer_norm_epsilon};
  }
  TensorView weight(const Layer& layer) const { return parameters_.parameter(layer.weight); }
  TensorView bias(const Layer& layer) const { return parameters_.parameter(layer.bias); }
  void normalize(const Layer& layer, int64_t rows, TensorView x, TensorView moments, TensorView y);
  void linear(const Layer& layer, int64_t rows, TensorView x, TensorView residual, TensorView y);
  void linear_gradients(const Layer& layer, int64_t rows, TensorView x, TensorView dy);
  void norm_backward(const Layer& layer, int64_t rows, TensorView x, TensorView moments,
                     TensorView dx);
  void complete_gradients(const Layer& layer);
  // Computes everything before the feed-forward part; returns the normalised input of that part.
  TensorView attend(const Rows& rows, TensorView x, BlockActivations& kept);

  const GptConfig config_;
  ParameterAccess& parameters_;
  Kernels& kernels_;
  Scratch& scratch_;
  const std::string prefix_;
  const ModuleId module_;
  const Layer ln_1_;
  const Layer attention_in_;
  const Layer attention_out_;
  const Layer ln_2_;
  const Layer feed_forward_in_;
  const Layer feed_forward_out_;
};

struct ModelOptions {
  int64_t micro_batch = 1;  // maximum number of sequences in a batch
  int64_t seq_len = 0;      // length of the sequences; maximum context for generation
  // activation checkpointing: keep only the input of each block and recompute the block in backward
  bool recompute = false;
  int64_t logits_rows = 0;  // of which logits are in memory at once; 0: as kLogitsNbytes says
};

// GPT-2 with a hand-written backward, on parameters of a ParameterAccess. It gathers every module
// around its use, and reports each gradient as soon as it is complete.
class Model {
 public:
  Model(const GptConfig& config, const ModelOptions& options, ParameterAccess& parameters,
        Device& device, Kernels& kernels);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  int64_t seq_len() const { return options_.seq_len; }
  int64_t vocabulary() const { return config_.vocabulary; }

  // Computes the gradients of loss_scale times the mean loss over the batch's tokens, without
  // waiting for them.
  void forward_backward(const Batch& batch, double loss_scale = 1.0);
  // Returns the sum of the mean losses of forward_backward since the last call; waits for them.
  double take_loss() { return kernels_.take_loss(); }
  // Writes that sum to one fp32 element on the device instead, without waiting.
  void move_loss(TensorView to) { kernels_.move_loss(to); }
  // Returns the mean loss over the batch's tokens. Must not be called between forward_backward and
  // take_loss.
  double loss(const Batch& batch);

  // Returns logits [tokens - first, vocabulary] of the rows of one sequence from `first` on, in
  // host memory. The tokens before `first` must be those of the previous call, whose keys and
  // values are reused. Valid until the next call.
  std::span<const float> logits(std::span<const int32_t> tokens, int64_t first = 0);

 private:
  // Of the token and position embeddings, and of the last normalisation.
  struct Ids {
    ModuleId embeddings = 0;
    ParameterId wte = 0;
    ParameterId wpe = 0;
    ModuleId norm = 0;
    ParameterId gain = 0;
    ParameterId bias = 0;
  };

  int64_t max_rows() const { return options_.micro_batch * options_.seq_len; }
  int64_t logits_stride() const { return kernels_.logits_stride(config_.vocabulary); }
  BlockActivations& kept(size_t layer) { return kept_[options_.recompute ? 0 : layer]; }
  Rows rows_of(const Batch& batch) const;
  LayerNormShape norm_shape(const Rows& rows) const {
    return {rows.count(), config_.width, config_.layer_norm_epsilon};
  }
  // The head multiplies with the transposed embedding, so that "x" of the shape are the logits.
  LinearShape head_shape(int64_t rows) const {
    return {rows, config_.vocabulary, config_.width, logits_stride()};
  }
  // Computes embeddings and blocks for the uploaded tokens.
  void forward_blocks(const Rows& rows);
  // Computes the last normalisation, whose module must be gathered.
  TensorView normalize(const Rows& rows);
  // Computes everything up to the head's input.
  TensorView forward(const Rows& rows);
  // Calls `use` with the logits of some rows after the other, from row `begin` of `normal` on, and
  // with the rows of `normal` that they are of. `wte` must be gathered.
  using UseLogits =
      std::function<void(int64_t begin, int64_t count, TensorView normal, TensorView logits)>;
  void in_pieces(const Rows& rows, TensorView normal, TensorView wte, const UseLogits& use);
  LogitsShape logits_shape(int64_t rows, int64_t mean_rows) const {
    return {rows, config_.vocabulary, logits_stride(), mean_rows};
  }
  void head_and_norm_backward(const Rows& rows, float loss_scale);

  const GptConfig config_;
  const ModelOptions options_;
  ParameterAccess& parameters_;
  Device& device_;
  Kernels& kernels_;
  const Ids ids_;
  TokenBatch batch_;
  Scratch scratch_;
  std::vector<Block> blocks_;
  std::vector<BlockActivations> kept_;  // one per block; a single one if blocks are recomputed
  std::vector<Activation> residual_;    // inputs of the blocks and of the last normalisation
  Activation moments_;                  // of the last normalisation
  Activation logits_;                   // of options_.logits_rows rows
  std::vector<float> host_logits_;
};

// Measures the floating point operations per second of large products with weights of `dtype`, with
// the kernels that train. Takes about a fifth of a second.
double measure_peak_flops(Device& device, Kernels& kernels, DType dtype);

struct SamplingOptions {
  int64_t tokens = 256;
  double temperature = 1.0;  // 0: always take the most likely token
  int64_t top_k = 0;         // 0: all
  uint64_t seed = 1;
};

// Returns a token sampled from softmax(logits / temperature) of the top_k largest logits. `uniform`
// is a random number in [0, 1).
int32_t draw_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

// Returns the model's continuation of the prompt, which must not be empty. When the context is
// full, its older half is dropped. All ranks generate the same text, because all have to take part
// in gathers.
std::vector<int32_t> generate(Model& model, std::vector<int32_t> prompt,
                              const SamplingOptions& options);

// Makes text that a byte-level model has generated safe to print: invalid UTF-8 and control
// characters other than line breaks and tabs become U+FFFD.
std::string sample_text(std::string_view bytes);

}  // namespace zerorun::train
