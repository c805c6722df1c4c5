#pragma once

#include <span>
#include <vector>

#include "examples/train/block.h"

namespace zerorun::train {

// Sequences of equal length, one after the other, and the token that follows each.
struct Batch {
  std::span<const int32_t> tokens;
  std::span<const int32_t> targets;
};

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

  // Mean loss over the batch's tokens; backward writes the gradients of loss_scale times that mean.
  double forward_backward(const Batch& batch, double loss_scale = 1.0);
  double loss(const Batch& batch);

  // Logits [tokens - first, vocabulary] of the rows of one sequence from `first` on. The tokens
  // before `first` are those of the previous call, whose keys and values are still there. Valid
  // until the next call.
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
  // Embeddings and blocks.
  void forward_blocks(const Rows& rows, std::span<const int32_t> tokens);
  // The last normalisation, which its caller has gathered.
  const float* normalize(const Rows& rows);
  void logits_of(const Rows& rows, std::span<const int32_t> tokens);
  // Loss and gradients of the head; the gradient of its input goes to scratch_.dnormal.
  double head(const Rows& rows, const float* normal, std::span<const int32_t> targets,
              float loss_scale);
  double head_and_norm_backward(const Rows& rows, std::span<const int32_t> targets,
                                float loss_scale);

  const GptConfig config_;
  const ModelOptions options_;
  ParameterAccess& parameters_;
  Kernels& kernels_;
  const Embeddings embeddings_;
  const FinalNorm norm_;
  Scratch scratch_;
  std::vector<Block> blocks_;
  std::vector<BlockActivations> kept_;  // one a block; one in all when blocks are recomputed
  std::vector<FloatBuffer> residual_;   // the input of each block and of the last normalisation
  FloatBuffer moments_;
  FloatBuffer logits_;
  FloatBuffer dx_;
};

}  // namespace zerorun::train
