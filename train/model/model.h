#pragma once

#include <span>
#include <vector>

#include "train/model/block.h"
#include "train/model/token_batch.h"

namespace zerorun::train {

struct ModelOptions {
  int64_t micro_batch = 1;  // maximum number of sequences in a batch
  int64_t seq_len = 0;      // length of the sequences; maximum context for generation
  // activation checkpointing: keep only the input of each block and recompute the block in backward
  bool recompute = false;
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
  struct Embeddings {
    ModuleId module = 0;
    ParameterId wte = 0;
    ParameterId wpe = 0;
  };
  struct FinalNorm {
    ModuleId module = 0;
    ParameterId gain = 0;
    ParameterId bias = 0;
  };

  BlockActivations& kept(size_t layer);
  Rows rows_of(const Batch& batch) const;
  LogitsShape logits_shape(const Rows& rows) const {
    return {rows.count(), config_.vocabulary, head_.stride};
  }
  // The head multiplies with the transposed embedding, so that "x" of the shape are the logits.
  LinearShape head_shape(const Rows& rows) const {
    return {rows.count(), config_.vocabulary, config_.width, head_.stride};
  }
  // Computes embeddings and blocks for the uploaded tokens.
  void forward_blocks(const Rows& rows);
  // Computes the last normalisation, whose module must be gathered.
  TensorView normalize(const Rows& rows);
  void logits_of(const Rows& rows);
  // Computes the gradients of the head and writes the gradient of its input to scratch_.dnormal.
  void head(const Rows& rows, TensorView normal, float loss_scale);
  void head_and_norm_backward(const Rows& rows, float loss_scale);

  const GptConfig config_;
  const ModelOptions options_;
  ParameterAccess& parameters_;
  Device& device_;
  Kernels& kernels_;
  const Embeddings embeddings_;
  const FinalNorm norm_;
  TokenBatch batch_;
  Scratch scratch_;
  std::vector<Block> blocks_;
  std::vector<BlockActivations> kept_;  // one per block; a single one if blocks are recomputed
  std::vector<Activation> residual_;    // inputs of the blocks and of the last normalisation
  HeadActivations head_;
  Activation dx_;
  std::vector<float> host_logits_;
};

}  // namespace zerorun::train
