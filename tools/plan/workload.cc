#include "tools/plan/workload.h"

#include <nlohmann/json.hpp>

#include "train/model/activations.h"
#include "train/model/attention_workspace.h"

namespace zerorun {

Workload workload_of(const PlanOptions& options, const Config& config) {
  const auto file = nlohmann::json::parse(config.train_options, nullptr, false);
  const auto integer = [&](int64_t given, const char* key) {
    return given > 0 || !file.contains(key) ? given : file.at(key).get<int64_t>();
  };
  const auto flag = [&](bool given, const char* key) {
    return given || (file.contains(key) && file.at(key).get<bool>());
  };
  return {.micro_batch = integer(options.micro_batch, "micro_batch"),
          .seq_len = integer(options.seq_len, "seq_len"),
          .recompute = flag(options.recompute, "recompute"),
          .fast_attention = flag(options.fast_attention, "fast_attention")};
}

double activation_nbytes(const PlanModel& model, const Workload& work, const Config& config,
                         bool cpu) {
  const train::AttentionShape shape{.batch = config.batch.micro_batch_size,
                                    .seq_len = work.seq_len,
                                    .heads = model.heads,
                                    .width = model.hidden_size};
  const double per_token =
      work.recompute ? model.recomputed_nbytes_per_token : model.activation_nbytes_per_token;
  const double tokens = static_cast<double>(shape.batch) * static_cast<double>(shape.seq_len);
  double nbytes = per_token * tokens;
  if (model.logits_row_nbytes > 0) {
    nbytes += train::logits_rows(tokens, model.logits_row_nbytes) * model.logits_row_nbytes;
  }
  if (cpu || shape.heads == 0 || !train::cudnn_has_attention(shape, config.precision.param_dtype)) {
    return nbytes;
  }
  return nbytes + (work.fast_attention ? train::fast_attention_workspace(shape)
                                       : train::attention_workspace(shape));
}

}  // namespace zerorun
