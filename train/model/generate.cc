#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/printable.h"
#include "train/model/model.h"
#include "train/model/philox.h"

namespace zerorun::train {

int32_t draw_token(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  const auto vocabulary = std::ssize(logits);
  std::vector<std::pair<float, int32_t>> order;
  for (const float logit : logits) {
    // A NaN of a diverged model is never selected.
    const float score = std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
    order.emplace_back(-score, static_cast<int32_t>(order.size()));
  }
  const bool greedy = options.temperature == 0.0;
  const int64_t count = greedy               ? 1
                        : options.top_k == 0 ? vocabulary
                                             : std::min<int64_t>(options.top_k, vocabulary);
  std::partial_sort(order.begin(), order.begin() + count, order.end());
  if (greedy) return order[0].second;
  std::vector<double> cumulative;
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const double below_best = double{order[0].first} - order[static_cast<size_t>(i)].first;
    sum += std::exp(below_best / options.temperature);
    cumulative.push_back(sum);
  }
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * sum);
  const auto index = std::min<int64_t>(chosen - cumulative.begin(), count - 1);
  return order[static_cast<size_t>(index)].second;
}

std::vector<int32_t> generate(Model& model, std::vector<int32_t> prompt,
                              const SamplingOptions& options) {
  ZR_CHECK(!prompt.empty(), "an empty prompt");
  const RandomStream stream{options.seed, RandomStream::Purpose::sampling, 0};
  const auto context = static_cast<size_t>(model.seq_len());
  const auto vocabulary = static_cast<size_t>(model.vocabulary());
  std::vector<int32_t> window = std::move(prompt);
  std::vector<int32_t> result;
  size_t known = 0;  // number of tokens of the window whose keys and values the model has
  for (int64_t i = 0; i < options.tokens; ++i) {
    if (window.size() > context) {
      window.erase(window.begin(), window.end() - static_cast<int64_t>((context + 1) / 2));
      known = 0;
    }
    const auto logits = model.logits(window, static_cast<int64_t>(known));
    known = window.size();
    const double uniform = random_uniform(stream, static_cast<uint64_t>(i));
    window.push_back(draw_token(logits.last(vocabulary), options, uniform));
    result.push_back(window.back());
  }
  return result;
}

std::string sample_text(std::string_view bytes) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string text;
  while (!bytes.empty()) {
    const bool is_space = bytes.front() == '\n' || bytes.front() == '\t';
    const size_t size = is_space ? 1 : printable_size(bytes);
    text += size > 0 ? bytes.substr(0, size) : kReplacement;
    bytes.remove_prefix(std::max<size_t>(size, 1));
  }
  return text;
}

}  // namespace zerorun::train
