#pragma once

#include "train/model/activations.h"
#include "train/model/gpt_config.h"
#include "train/model/kernels.h"
#include "train/model/parameters.h"

namespace zerorun::train {

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
  void feed_forward_backward(int64_t rows, const BlockActivations& kept, TensorView dx);
  void attention_backward(const Rows& rows, TensorView x, const BlockActivations& kept,
                          TensorView dx);

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

}  // namespace zerorun::train
