#include "examples/train/cpu/embedding.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/parallel.h"
#include "examples/train/cpu/elementwise.h"

namespace zerorun::train {

namespace {

constexpr int64_t kRows = 8;  // of one thread's smallest piece of work

GradientView row_of(const GradientView& gradient, int64_t row, int64_t width) {
  return {gradient.view.slice(row * width, width), gradient.accumulate};
}

// Rows are added in fp32 before they are rounded to the gradient's dtype.
class RowSum {
 public:
  explicit RowSum(int64_t width) : sum_(static_cast<size_t>(width)) {}
  void add(const float* row) {
    write_gradient(row, {view_of(std::span<float>(sum_)), count_++ > 0});
  }
  void write(const GradientView& to) {
    write_gradient(sum_.data(), to);
    count_ = 0;
  }

 private:
  std::vector<float> sum_;
  int64_t count_ = 0;
};

void wpe_backward(const TokenGrid& grid, const float* dx, const GradientView& wpe) {
  const int64_t rows = std::ssize(grid.tokens);
  parallel_for(grid.seq_len, kRows, [&](int64_t begin, int64_t end) {
    RowSum sum(grid.width);
    for (int64_t position = begin; position < end; ++position) {
      for (int64_t row = position; row < rows; row += grid.seq_len) sum.add(dx + row * grid.width);
      sum.write(row_of(wpe, position, grid.width));
    }
  });
  if (wpe.accumulate) return;
  const TensorView unused =
      wpe.view.slice(grid.seq_len * grid.width, wpe.view.numel - grid.seq_len * grid.width);
  if (!unused.empty()) std::memset(unused.data, 0, unused.nbytes());
}

void wte_backward(const TokenGrid& grid, const float* dx, const GradientView& wte) {
  if (!wte.accumulate) std::memset(wte.view.data, 0, wte.view.nbytes());
  const GradientView gradient{wte.view, true};
  std::vector<int32_t> order(grid.tokens.size());
  std::iota(order.begin(), order.end(), 0);
  const auto token_of = [&](int32_t row) { return grid.tokens[static_cast<size_t>(row)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return token_of(a) < token_of(b); });
  RowSum sum(grid.width);
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t token = token_of(order[i]);
    sum.add(dx + order[i] * grid.width);
    if (i + 1 < order.size() && token_of(order[i + 1]) == token) continue;
    sum.write(row_of(gradient, token, grid.width));
  }
}

}  // namespace

void embed(const TokenGrid& grid, TensorView wte, TensorView wpe, float* x) {
  parallel_for(std::ssize(grid.tokens), kRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t token = grid.tokens[static_cast<size_t>(row)];
      const int64_t position = grid.first + row % grid.seq_len;
      float* const out = x + row * grid.width;
      start_rows(1, grid.width, wte.slice(token * grid.width, grid.width), nullptr, out);
      start_rows(1, grid.width, wpe.slice(position * grid.width, grid.width), out, out);
    }
  });
}

void embed_backward(const TokenGrid& grid, const float* dx, const GradientView& wte,
                    const GradientView& wpe) {
  wpe_backward(grid, dx, wpe);
  wte_backward(grid, dx, wte);
}

}  // namespace zerorun::train
