#include <cstring>
#include <vector>

#include "core/parallel.h"
#include "train/cpu/cpu_kernels.h"
#include "train/cpu/matrix.h"

namespace zerorun::train {

namespace {

constexpr int64_t kEmbeddingRows = 8;  // minimum number of rows per thread

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
  parallel_for(grid.seq_len, kEmbeddingRows, [&](int64_t begin, int64_t end) {
    RowSum sum(grid.width);
    for (int64_t position = begin; position < end; ++position) {
      for (int64_t row = position; row < grid.rows; row += grid.seq_len)
        sum.add(dx + row * grid.width);
      sum.write(row_of(wpe, position, grid.width));
    }
  });
  if (wpe.accumulate) return;
  const TensorView unused =
      wpe.view.slice(grid.seq_len * grid.width, wpe.view.numel - grid.seq_len * grid.width);
  if (!unused.empty()) std::memset(unused.data, 0, unused.nbytes());
}

void wte_backward(const TokenGrid& grid, const TokenOrder& order, const float* dx,
                  const GradientView& wte) {
  if (!wte.accumulate) std::memset(wte.view.data, 0, wte.view.nbytes());
  const GradientView gradient{wte.view, true};
  RowSum sum(grid.width);
  for (int64_t i = 0; i < order.distinct; ++i) {
    const int32_t begin = order.begins[i];
    for (int32_t at = begin; at < order.begins[i + 1]; ++at) {
      sum.add(dx + order.rows[at] * grid.width);
    }
    sum.write(row_of(gradient, grid.tokens[order.rows[begin]], grid.width));
  }
}

}  // namespace

void CpuKernels::embed(const TokenGrid& grid, TensorView wte, TensorView wpe, TensorView x) {
  float* const rows = floats(x);
  parallel_for(grid.rows, kEmbeddingRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t token = grid.tokens[row];
      const int64_t position = grid.first + row % grid.seq_len;
      float* const out = rows + row * grid.width;
      start_rows(1, grid.width, wte.slice(token * grid.width, grid.width), nullptr, out);
      start_rows(1, grid.width, wpe.slice(position * grid.width, grid.width), out, out);
    }
  });
}

void CpuKernels::embed_backward(const TokenGrid& grid, const TokenOrder& order, TensorView dx,
                                const GradientView& wte, const GradientView& wpe) {
  wpe_backward(grid, floats(dx), wpe);
  wte_backward(grid, order, floats(dx), wte);
}

}  // namespace zerorun::train
