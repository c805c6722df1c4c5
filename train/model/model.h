#pragma once

#include <span>
#include <vector>

#include "train/model/block.h"
#include "train/model/token_batch.h"

namespace zerorun::train {

struct ModelOptions {
  int64_t micro_batch = 1;  // most sequences in a batch
  int64_t seq_len = 0;      // of every batch; longest context when generating
  bool recompute = false;   // keep only each block's input and compute the block again in backward
};

// GPT-2 with a hand-written backward over parameters that a ParameterAccess holds: every module is
// gathered around its use, and each gradient is announced as soon as it is complete.
class Model {
 public:
  Model(const GptConfig& config, const ModelOptions& options, ParameterAccess& parameters,
        Device& device, Kernels& kernels);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  int64_t seq_len() const { return options_.seq_len; }
  int64_t vocabulary() const { return config_.vocabulary; }

  // Writes the gradients of loss_scale times the mean loss over the batch's tokens, without waiting
  // for them.
  void forward_backward(const Batch& batch, double loss_scale = 1.0);
  // The mean losses of forward_backward since the last call, added; waits for them.
  double take_loss() { return kernels_.take_loss(); }
  // Mean loss over the batch's tokens. Not between forward_backward and take_loss.
  double loss(const Batch& batch);

  // Logits [tokens - first, vocabulary] of the rows of one sequence from `first` on, in host
  // memory. The tokens before `first` are those of the previous call, whose keys and values are
  // still there. Valid until the next call.
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
  // The head multiplies with the transposed embedding: its "x" are the logits.
  LinearShape head_shape(const Rows& rows) const {
    return {rows.count(), config_.vocabulary, config_.width, head_.stride};
  }
  // Embeddings and blocks, of the uploaded tokens.
  void forward_blocks(const Rows& rows);
  // The last normalisation, which its caller has gathered.
  TensorView normalize(const Rows& rows);
  void logits_of(const Rows& rows);
  // Gradients of the head; the gradient of its input goes to scratch_.dnormal.
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
  std::vector<BlockActivations> kept_;  // one a block; one in all when blocks are recomputed
  std::vector<Activation> residual_;    // the input of each block and of the last normalisation
  HeadActivations head_;
  Activation dx_;
  std::vector<float> host_logits_;
};

}  // namespace zerorun::train
