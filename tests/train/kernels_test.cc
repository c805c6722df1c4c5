#include "examples/train/kernels.h"

#include <gtest/gtest.h>

#include <numeric>

#include "examples/train/cpu/cpu_kernels.h"
#include "tests/train/reference.h"

namespace zerorun::train::testing {
namespace {

constexpr double kFp32 = 2e-6;
// Half a unit in the last place, relative to the largest element.
constexpr double kBf16 = 5e-3;
constexpr double kFp16 = 6e-4;

double gradient_tolerance(DType dtype) {
  return dtype == DType::bf16 ? kBf16 : dtype == DType::fp16 ? kFp16 : kFp32;
}

class LinearTest : public ::testing::TestWithParam<std::tuple<LinearShape, DType>> {
 protected:
  LinearShape shape() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  CpuKernels kernels_;
};

TEST_P(LinearTest, AddsBiasAndResidualToTheProduct) {
  const auto [rows, in, out] = shape();
  const auto x = random_floats(rows * in, 1);
  StoredTensor weight(random_floats(in * out, 2), dtype());
  StoredTensor bias(random_floats(out, 3), dtype());
  const auto residual = random_floats(rows * out, 4);
  const Doubles xs = widened(x);
  const Doubles ws = weight.values();
  const Doubles bs = bias.values();
  const Doubles plain = product(rows, out, in, entries(xs, in), entries(ws, out));
  Doubles full = plain;
  for (size_t i = 0; i < full.size(); ++i) full[i] += bs[i % bs.size()] + residual[i];

  std::vector<float> y(static_cast<size_t>(rows * out), 7.0F);
  kernels_.linear(shape(), x.data(), weight.view(), {}, nullptr, y.data());
  expect_close(y, plain, kFp32, "product");
  kernels_.linear(shape(), x.data(), weight.view(), bias.view(), residual.data(), y.data());
  expect_close(y, full, kFp32, "with bias and residual");
  y = residual;
  kernels_.linear(shape(), x.data(), weight.view(), bias.view(), y.data(), y.data());
  expect_close(y, full, kFp32, "in place");
}

TEST_P(LinearTest, TransposedProduct) {
  const auto [rows, in, out] = shape();
  const auto y = random_floats(rows * out, 1);
  StoredTensor weight(random_floats(in * out, 2), dtype());
  const Doubles ys = widened(y);
  const Doubles ws = weight.values();
  std::vector<float> x(static_cast<size_t>(rows * in), 7.0F);
  kernels_.linear_transposed(shape(), y.data(), weight.view(), x.data());
  expect_close(x, product(rows, in, out, entries(ys, out), transposed(ws, out)), kFp32, "x");
}

TEST_P(LinearTest, GradientsOverwriteOrAccumulate) {
  const auto [rows, in, out] = shape();
  const auto x = random_floats(rows * in, 1);
  const auto dy = random_floats(rows * out, 2);
  const Doubles xs = widened(x);
  const Doubles dys = widened(dy);
  Doubles weight_gradient = product(in, out, rows, transposed(xs, in), entries(dys, out));
  Doubles bias_gradient(static_cast<size_t>(out));
  for (size_t i = 0; i < dys.size(); ++i) bias_gradient[i % bias_gradient.size()] += dys[i];

  StoredTensor weight(std::vector<float>(static_cast<size_t>(in * out), 9.0F), dtype());
  StoredTensor bias(std::vector<float>(static_cast<size_t>(out), 9.0F), dtype());
  for (bool accumulate : {false, true}) {
    kernels_.linear_weight_gradient(shape(), x.data(), dy.data(), {weight.view(), accumulate});
    kernels_.bias_gradient(rows, out, dy.data(), {bias.view(), accumulate});
    expect_close(weight.values(), weight_gradient, gradient_tolerance(dtype()), "weight");
    expect_close(bias.values(), bias_gradient, gradient_tolerance(dtype()), "bias");
    for (double& value : weight_gradient) value *= 2.0;
    for (double& value : bias_gradient) value *= 2.0;
  }
}

// The last shape needs several panels and tiles of 16-bit weights.
INSTANTIATE_TEST_SUITE_P(
    Shapes, LinearTest,
    ::testing::Combine(::testing::Values(LinearShape{1, 1, 1}, LinearShape{5, 7, 3},
                                         LinearShape{33, 64, 17}, LinearShape{3, 1201, 603}),
                       ::testing::Values(DType::fp32, DType::bf16, DType::fp16)));

// Mean and deviation of each row taken out, then scaled and shifted.
Doubles layer_norm_reference(const LayerNormShape& shape, const Doubles& x, const Doubles& gain,
                             const Doubles& bias) {
  Doubles y(x.size());
  const auto width = static_cast<size_t>(shape.width);
  for (size_t begin = 0; begin < x.size(); begin += width) {
    double mean = 0.0;
    double variance = 0.0;
    for (size_t i = 0; i < width; ++i) mean += x[begin + i] / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i) {
      variance += std::pow(x[begin + i] - mean, 2) / static_cast<double>(width);
    }
    const double deviation = std::sqrt(variance + shape.epsilon);
    for (size_t i = 0; i < width; ++i) {
      y[begin + i] = (x[begin + i] - mean) / deviation * gain[i] + bias[i];
    }
  }
  return y;
}

class LayerNormTest : public ::testing::TestWithParam<LayerNormShape> {};

TEST_P(LayerNormTest, MatchesDefinitionAndItsDerivatives) {
  const LayerNormShape shape = GetParam();
  const auto x = random_floats(shape.rows * shape.width, 1, 2.0F);
  const auto dy = random_floats(shape.rows * shape.width, 2);
  const auto start = random_floats(shape.rows * shape.width, 3);
  StoredTensor gain(random_floats(shape.width, 4), DType::fp32);
  StoredTensor bias(random_floats(shape.width, 5), DType::fp32);
  const Doubles xs = widened(x);
  const Doubles dys = widened(dy);
  const Doubles gains = gain.values();
  const Doubles biases = bias.values();

  CpuKernels kernels;
  std::vector<float> moments(static_cast<size_t>(2 * shape.rows));
  std::vector<float> y(x.size());
  kernels.layer_norm(shape, x.data(), gain.view(), bias.view(), moments.data(), y.data());
  expect_close(y, layer_norm_reference(shape, xs, gains, biases), kFp32, "y");

  std::vector<float> dx = start;
  StoredTensor dgain(std::vector<float>(gains.size(), 9.0F), DType::fp32);
  StoredTensor dbias(std::vector<float>(gains.size(), 9.0F), DType::fp32);
  kernels.layer_norm_backward(shape, {x.data(), moments.data(), gain.view()}, dy.data(),
                              {dx.data(), {dgain.view(), false}, {dbias.view(), false}});
  Doubles expected_dx = gradient(
      [&](const Doubles& at) {
        return weighted_sum(layer_norm_reference(shape, at, gains, biases), dys);
      },
      xs);
  for (size_t i = 0; i < expected_dx.size(); ++i) expected_dx[i] += start[i];
  expect_close(dx, expected_dx, 5e-6, "dx");
  expect_close(dgain.values(),
               gradient(
                   [&](const Doubles& at) {
                     return weighted_sum(layer_norm_reference(shape, xs, at, biases), dys);
                   },
                   gains),
               5e-6, "dgain");
  expect_close(dbias.values(),
               gradient(
                   [&](const Doubles& at) {
                     return weighted_sum(layer_norm_reference(shape, xs, gains, at), dys);
                   },
                   biases),
               5e-6, "dbias");
}

INSTANTIATE_TEST_SUITE_P(Shapes, LayerNormTest,
                         ::testing::Values(LayerNormShape{1, 3}, LayerNormShape{5, 17},
                                           LayerNormShape{70, 8}, LayerNormShape{2, 65}));

double gelu_reference(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(GeluTest, MatchesDefinitionAndItsDerivative) {
  std::vector<float> x = random_floats(1003, 1, 3.0F);
  x.insert(x.end(), {0.0F, -0.0F, 1e-8F, 40.0F, -40.0F, 1e4F, -1e4F});
  const auto dy = random_floats(std::ssize(x), 2);
  std::vector<float> y(x.size());
  std::vector<float> again(x.size());
  std::vector<float> dx = dy;
  CpuKernels kernels;
  kernels.gelu(std::ssize(x), x.data(), y.data());
  kernels.gelu_backward(std::ssize(x), x.data(), again.data(), dx.data());
  EXPECT_EQ(y, again);
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    EXPECT_NEAR(y[i], gelu_reference(at), 1e-6 * std::max(1.0, std::abs(at))) << at;
    const double slope = (gelu_reference(at + 1e-4) - gelu_reference(at - 1e-4)) / 2e-4;
    EXPECT_NEAR(dx[i], dy[i] * slope, 5e-6 * std::max(1.0, std::abs(double{dy[i]}))) << at;
  }
}

// Softmax over the positions up to the query's own, head by head.
Doubles attention_reference(const AttentionShape& shape, const Doubles& qkv) {
  Doubles out(static_cast<size_t>(shape.batch * shape.seq_len * shape.width));
  const int64_t head_width = shape.width / shape.heads;
  const auto at = [&](int64_t batch, int64_t position, int64_t column) {
    return qkv[static_cast<size_t>((batch * shape.seq_len + position) * 3 * shape.width + column)];
  };
  for (int64_t batch = 0; batch < shape.batch; ++batch) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      for (int64_t query = 0; query < shape.seq_len; ++query) {
        Doubles weights;
        for (int64_t key = 0; key <= query; ++key) {
          double score = 0.0;
          for (int64_t i = head * head_width; i < (head + 1) * head_width; ++i) {
            score += at(batch, query, i) * at(batch, key, shape.width + i);
          }
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(head_width))));
        }
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (int64_t i = head * head_width; i < (head + 1) * head_width; ++i) {
          double value = 0.0;
          for (int64_t key = 0; key <= query; ++key) {
            value += weights[static_cast<size_t>(key)] / sum * at(batch, key, 2 * shape.width + i);
          }
          out[static_cast<size_t>((batch * shape.seq_len + query) * shape.width + i)] = value;
        }
      }
    }
  }
  return out;
}

std::vector<float> attend(const AttentionShape& shape, const std::vector<float>& qkv,
                          std::vector<float>& log_sum) {
  std::vector<float> out(static_cast<size_t>(shape.batch * shape.seq_len * shape.width), 7.0F);
  log_sum.resize(static_cast<size_t>(shape.batch * shape.seq_len * shape.heads));
  CpuKernels().attention(shape, qkv.data(), log_sum.data(), out.data());
  return out;
}

TEST(AttentionTest, MatchesDefinitionAndItsDerivatives) {
  const AttentionShape shape{2, 11, 0, 3, 15};
  const auto qkv = random_floats(shape.batch * shape.seq_len * 3 * shape.width, 1);
  const auto dout = random_floats(shape.batch * shape.seq_len * shape.width, 2);
  const Doubles qkvs = widened(qkv);
  const Doubles douts = widened(dout);
  std::vector<float> log_sum;
  const std::vector<float> out = attend(shape, qkv, log_sum);
  expect_close(out, attention_reference(shape, qkvs), kFp32, "out");

  std::vector<float> dqkv(qkv.size(), 7.0F);
  CpuKernels().attention_backward(shape, {qkv.data(), out.data(), log_sum.data()}, dout.data(),
                                  dqkv.data());
  const Doubles expected = gradient(
      [&](const Doubles& at) { return weighted_sum(attention_reference(shape, at), douts); }, qkvs);
  expect_close(dqkv, expected, 5e-6, "dqkv");
}

// Longer than one block of queries; the derivative at a few elements only.
TEST(AttentionTest, JoinsBlocksOfQueries) {
  const AttentionShape shape{1, 150, 0, 1, 4};
  const auto qkv = random_floats(shape.seq_len * 3 * shape.width, 1);
  const auto dout = random_floats(shape.seq_len * shape.width, 2);
  const Doubles qkvs = widened(qkv);
  const Doubles douts = widened(dout);
  std::vector<float> log_sum;
  const std::vector<float> out = attend(shape, qkv, log_sum);
  expect_close(out, attention_reference(shape, qkvs), kFp32, "out");

  std::vector<float> dqkv(qkv.size(), 7.0F);
  CpuKernels().attention_backward(shape, {qkv.data(), out.data(), log_sum.data()}, dout.data(),
                                  dqkv.data());
  const auto loss = [&](const Doubles& at) {
    return weighted_sum(attention_reference(shape, at), douts);
  };
  for (size_t i = 0; i < qkv.size(); i += 97) {
    EXPECT_NEAR(dqkv[i], derivative(loss, qkvs, i), 2e-5) << i;
  }
}

TEST(AttentionTest, LaterQueriesAloneGiveTheSame) {
  AttentionShape shape{1, 70, 0, 2, 8};
  const auto qkv = random_floats(shape.seq_len * 3 * shape.width, 1);
  std::vector<float> log_sum;
  const std::vector<float> all = attend(shape, qkv, log_sum);
  shape.first = 67;
  const std::vector<float> some = attend(shape, qkv, log_sum);
  for (size_t i = static_cast<size_t>(shape.first * shape.width); i < all.size(); ++i) {
    EXPECT_NEAR(some[i], all[i], 1e-6) << i;
  }
  EXPECT_EQ(some[0], 7.0F) << "rows before `first` are not written";
}

double cross_entropy_reference(const Doubles& logits, std::span<const int32_t> targets) {
  const size_t vocabulary = logits.size() / targets.size();
  double loss = 0.0;
  for (size_t row = 0; row < targets.size(); ++row) {
    double sum = 0.0;
    for (size_t i = 0; i < vocabulary; ++i) sum += std::exp(logits[row * vocabulary + i]);
    loss += std::log(sum) - logits[row * vocabulary + static_cast<size_t>(targets[row])];
  }
  return loss / static_cast<double>(targets.size());
}

TEST(CrossEntropyTest, MatchesDefinitionAndItsDerivative) {
  const std::vector<int32_t> targets = {0, 12, 5, 5, 1};
  std::vector<float> logits = random_floats(13 * std::ssize(targets), 1, 4.0F);
  const Doubles values = widened(logits);
  CpuKernels kernels;
  const double expected = cross_entropy_reference(values, targets);
  EXPECT_NEAR(kernels.cross_entropy(5, 13, targets, logits.data()), expected, 1e-6 * expected);
  EXPECT_NEAR(kernels.cross_entropy_gradient(5, 13, targets, 8.0F, logits.data()), expected,
              1e-6 * expected);
  const auto loss = [&](const Doubles& at) { return cross_entropy_reference(at, targets); };
  Doubles scaled = gradient(loss, values);
  for (double& value : scaled) value *= 8.0;
  expect_close(logits, scaled, 5e-6, "dlogits");
}

TEST(CrossEntropyTest, LargeLogitsStayFinite) {
  const std::vector<int32_t> targets = {2};
  std::vector<float> logits = {1e30F, -1e30F, 3e4F, 0.0F, 1.0F};
  const double loss = CpuKernels().cross_entropy_gradient(1, 5, targets, 1.0F, logits.data());
  EXPECT_NEAR(loss, 1e30, 1e24);
  EXPECT_EQ(logits, (std::vector<float>{1.0F, 0.0F, -1.0F, 0.0F, 0.0F}));
}

class EmbeddingTest : public ::testing::TestWithParam<DType> {};

TEST_P(EmbeddingTest, AddsRowsAndSendsGradientsBack) {
  constexpr int64_t kWidth = 13;
  constexpr int64_t kPositions = 5;
  constexpr int64_t kVocabulary = 7;
  const std::vector<int32_t> tokens = {3, 3, 0, 6, 3, 6};
  const TokenGrid grid{tokens, 3, 0, kWidth};
  StoredTensor wte(random_floats(kVocabulary * kWidth, 1), GetParam());
  StoredTensor wpe(random_floats(kPositions * kWidth, 2), GetParam());
  const auto dx = random_floats(std::ssize(tokens) * kWidth, 3);
  const Doubles tes = wte.values();
  const Doubles pes = wpe.values();
  Doubles x(dx.size());
  Doubles dwte(tes.size());
  Doubles dwpe(pes.size());
  for (size_t i = 0; i < dx.size(); ++i) {
    const size_t row = i / kWidth;
    const size_t token = static_cast<size_t>(tokens[row]) * kWidth + i % kWidth;
    const size_t position = row % 3 * kWidth + i % kWidth;
    x[i] = tes[token] + pes[position];
    dwte[token] += dx[i];
    dwpe[position] += dx[i];
  }
  CpuKernels kernels;
  std::vector<float> y(dx.size());
  kernels.embed(grid, wte.view(), wpe.view(), y.data());
  expect_close(y, x, kFp32, "x");

  const double tolerance = gradient_tolerance(GetParam());
  for (bool accumulate : {false, true}) {
    kernels.embed_backward(grid, dx.data(), {wte.view(), accumulate}, {wpe.view(), accumulate});
    expect_close(wte.values(), dwte, tolerance, "dwte");
    expect_close(wpe.values(), dwpe, tolerance, "dwpe");
    for (double& value : dwte) value *= 2.0;
    for (double& value : dwpe) value *= 2.0;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, EmbeddingTest,
                         ::testing::Values(DType::fp32, DType::bf16, DType::fp16));

}  // namespace
}  // namespace zerorun::train::testing
