// Every implementation of Kernels against float64 formulas.
#pragma once

#include "tests/train/model/kernels_under_test.h"

namespace zerorun::train::testing {

// Rows of values as a kernel with a stride wants them, and back.
inline std::vector<float> spread(const std::vector<float>& dense, int64_t rows, int64_t stride) {
  const auto width = std::ssize(dense) / rows;
  std::vector<float> stored(static_cast<size_t>(rows * stride), 1e4F);
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(dense.begin() + row * width, width, stored.begin() + row * stride);
  }
  return stored;
}
inline Doubles dense(const Doubles& stored, int64_t rows, int64_t width) {
  const auto stride = std::ssize(stored) / rows;
  Doubles values;
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = stored.begin() + row * stride;
    values.insert(values.end(), begin, begin + width);
  }
  return values;
}

// The fourth shape needs several panels and tiles of 16-bit weights on the CPU; the last is that of
// the head, whose logits need not be dense.
TEST_P(KernelsConformance, ProductsAndTheirGradients) {
  const int64_t stride = kernels_->logits_stride(37);
  ASSERT_GE(stride, 37);
  for (const LinearShape& shape :
       {LinearShape{1, 1, 1}, {5, 7, 3}, {33, 64, 17}, {3, 1201, 603}, {6, 37, 16, stride}}) {
    const int64_t rows = shape.rows;
    const DeviceTensor x =
        activation(spread(random_floats(rows * shape.in, 1), rows, shape.stride()));
    const DeviceTensor weight = parameter(random_floats(shape.in * shape.out, 2));
    const DeviceTensor bias = parameter(random_floats(shape.out, 3));
    const DeviceTensor residual = activation(random_floats(rows * shape.out, 4));
    const Entry xs = entries(dense(x.values(), rows, shape.in), shape.in);
    const Entry ws = entries(weight.values(), shape.out);
    const Doubles plain = product(rows, shape.out, shape.in, xs, ws);
    const Doubles with_bias = plus(plain, bias.values());
    const Doubles full = plus(with_bias, residual.values());
    const DeviceTensor y = activation(rows * shape.out);
    const double tolerance = 2 * activation_rounding();  // where bias and product round apart
    kernels_->linear(shape, x, weight, {}, {}, y);
    expect_close(y.values(), plain, activation_rounding(), "product");
    kernels_->linear(shape, x, weight, bias, {}, y);
    expect_close(y.values(), with_bias, tolerance, "with bias");
    kernels_->linear(shape, x, weight, bias, residual, y);
    expect_close(y.values(), full, tolerance, "with bias and residual");
    kernels_->linear(shape, x, weight, bias, residual, residual);
    expect_close(residual.values(), full, tolerance, "in place");

    const DeviceTensor dy = activation(random_floats(rows * shape.out, 5));
    const Doubles dys = dy.values();
    const Doubles transposed_product =
        product(rows, shape.in, shape.out, entries(dys, shape.out), transposed(ws));
    const Doubles weight_gradient =
        product(shape.in, shape.out, rows, transposed(xs), entries(dys, shape.out));
    Doubles bias_gradient(static_cast<size_t>(shape.out));
    for (size_t i = 0; i < dys.size(); ++i) bias_gradient[i % bias_gradient.size()] += dys[i];
    const DeviceTensor dx = activation(rows * shape.stride());
    kernels_->linear_transposed(shape, dy, weight, dx);
    expect_close(dense(dx.values(), rows, shape.in), transposed_product, activation_rounding(),
                 "transposed");
    const DeviceTensor dweight = parameter(shape.in * shape.out);
    const DeviceTensor dbias = parameter(shape.out);
    for (const int sum : {1, 2}) {
      kernels_->linear_gradients(shape, x, dy, {dweight, sum > 1}, {dbias, sum > 1});
      expect_close(dweight.values(), times(sum, weight_gradient), gradient_rounding(), "dweight");
      expect_close(dbias.values(), times(sum, bias_gradient), gradient_rounding(), "dbias");
    }
    kernels_->linear_gradients(shape, x, dy, {dweight, false}, {});
    expect_close(dweight.values(), weight_gradient, gradient_rounding(), "dweight alone");
  }
}

inline double gelu_reference(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST_P(KernelsConformance, GeluFollowsTheProductAndItsDerivativeTheTransposed) {
  for (const LinearShape shape : {LinearShape{5, 7, 3}, LinearShape{33, 64, 24}}) {
    const int64_t numel = shape.rows * shape.out;
    const DeviceTensor x = activation(random_floats(shape.rows * shape.in, 1));
    const DeviceTensor weight = parameter(random_floats(shape.in * shape.out, 2, 0.3F));
    const DeviceTensor bias = parameter(random_floats(shape.out, 3));
    const Doubles before =
        plus(product(shape.rows, shape.out, shape.in, entries(x.values(), shape.in),
                     entries(weight.values(), shape.out)),
             bias.values());
    Doubles after = before;
    for (double& value : after) value = gelu_reference(value);
    const double tolerance = 2 * activation_rounding();  // where bias and product round apart
    const DeviceTensor hidden = activation(numel);
    const DeviceTensor active = activation(numel);
    kernels_->linear_gelu(shape, x, weight, bias, hidden, active);
    expect_close(hidden.values(), before, tolerance, "hidden");
    expect_close(active.values(), after, tolerance, "active");

    // Back through a product from `shape.out` to `shape.in` columns.
    const LinearShape second{shape.rows, shape.out, shape.in};
    const DeviceTensor dy = activation(random_floats(shape.rows * shape.in, 4));
    const DeviceTensor projection = parameter(random_floats(shape.in * shape.out, 5));
    const Doubles kept = hidden.values();
    Doubles expected = product(second.rows, second.in, second.out, entries(dy.values(), second.out),
                               transposed(entries(projection.values(), second.out)));
    for (size_t i = 0; i < expected.size(); ++i) {
      const double at = kept[i];
      expected[i] *= (gelu_reference(at + 1e-5) - gelu_reference(at - 1e-5)) / 2e-5;
      after[i] = gelu_reference(at);
    }
    const DeviceTensor dhidden = activation(numel);
    kernels_->linear_transposed_gelu(second, dy, projection, hidden, active, dhidden);
    expect_close(active.values(), after, activation_rounding(), "active, again");
    expect_close(dhidden.values(), expected, tolerance, "dhidden");
  }
}

// At stage 3 parameters move in memory from step to step, by cache lines
// (zero/partition/partition.cc). Closer than that cuBLAS may well take another algorithm.
TEST_P(KernelsConformance, ResultsDoNotDependOnWhereWeightsLie) {
  const LinearShape shape{48, 32, 64};
  const DeviceTensor x = activation(random_floats(shape.rows * shape.in, 1));
  const std::vector<float> weights = random_floats(shape.in * shape.out, 2);
  const DeviceTensor y = activation(shape.rows * shape.out);
  kernels_->linear(shape, x, parameter(weights), {}, {}, y);
  const Doubles expected = y.values();
  for (const int64_t shift : {32, 64, 96, 256}) {
    std::vector<float> moved(static_cast<size_t>(shift));
    moved.insert(moved.end(), weights.begin(), weights.end());
    const DeviceTensor stored = parameter(moved);
    kernels_->linear(shape, x, stored.view().slice(shift, std::ssize(weights)), {}, {}, y);
    EXPECT_TRUE(y.values() == expected) << shift;
  }
}

// Mean and deviation of each row taken out, then scaled and shifted.
inline Doubles layer_norm_reference(const LayerNormShape& shape, const Doubles& x,
                                    const Doubles& gain, const Doubles& bias) {
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

TEST_P(KernelsConformance, LayerNormMatchesDefinitionAndItsDerivatives) {
  for (const LayerNormShape shape :
       {LayerNormShape{1, 3}, LayerNormShape{5, 17}, LayerNormShape{70, 8}, LayerNormShape{2, 65},
        LayerNormShape{9, 272}, LayerNormShape{2, 1030}}) {
    const int64_t numel = shape.rows * shape.width;
    const DeviceTensor x = activation(random_floats(numel, 1, 2.0F));
    const DeviceTensor dy = activation(random_floats(numel, 2));
    const DeviceTensor dx = activation(random_floats(numel, 3));
    const DeviceTensor gain = parameter(random_floats(shape.width, 4));
    const DeviceTensor bias = parameter(random_floats(shape.width, 5));
    const Doubles xs = x.values();
    const Doubles start = dx.values();
    const Doubles gains = gain.values();
    const Doubles biases = bias.values();
    const auto loss = [&, dys = dy.values()](const Doubles& at, const Doubles& gains_at,
                                             const Doubles& biases_at) {
      return weighted_sum(layer_norm_reference(shape, at, gains_at, biases_at), dys);
    };

    const DeviceTensor moments = sums(2 * shape.rows);
    const DeviceTensor y = activation(numel);
    kernels_->layer_norm(shape, x, gain, bias, moments, y);
    expect_close(y.values(), layer_norm_reference(shape, xs, gains, biases), activation_rounding(),
                 "y");

    const Doubles expected =
        gradient([&](const Doubles& at) { return loss(at, gains, biases); }, xs);
    const Doubles expected_gain =
        gradient([&](const Doubles& at) { return loss(xs, at, biases); }, gains);
    const Doubles expected_bias =
        gradient([&](const Doubles& at) { return loss(xs, gains, at); }, biases);
    const DeviceTensor dgain = parameter(shape.width);
    const DeviceTensor dbias = parameter(shape.width);
    for (const bool again : {false, true}) {  // adds dx the first time, the others the second
      kernels_->layer_norm_backward(shape, {x, moments, gain}, dy,
                                    {{dx, !again}, {dgain, again}, {dbias, again}});
      const double sum = again ? 2 : 1;
      expect_close(dgain.values(), times(sum, expected_gain), 3 * gradient_rounding(), "dgain");
      expect_close(dbias.values(), times(sum, expected_bias), 3 * gradient_rounding(), "dbias");
      expect_close(dx.values(), again ? expected : plus(expected, start), 3 * activation_rounding(),
                   "dx");
    }
  }
}

// Softmax over the positions up to the query's own, head by head.
inline Doubles attention_reference(const AttentionShape& shape, const Doubles& qkv) {
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

struct AttentionConformance : KernelsConformance {
  // Output and gradient against the reference, the latter at every `step`-th element.
  void check(const AttentionShape& shape, float size, size_t step, double tolerance) {
    const int64_t rows = shape.batch * shape.seq_len;
    const DeviceTensor qkv = activation(random_floats(rows * 3 * shape.width, 1, size));
    const DeviceTensor dout = activation(random_floats(rows * shape.width, 2));
    const DeviceTensor dqkv = activation(rows * 3 * shape.width);
    const DeviceTensor out = activation(rows * shape.width);
    const DeviceTensor log_sum = sums(rows * shape.heads);
    kernels_->attention(shape, qkv, log_sum, out);
    kernels_->attention_backward(shape, {qkv, out, log_sum}, dout, dqkv);
    const Doubles qkvs = qkv.values();
    const auto loss = [&, douts = dout.values()](const Doubles& at) {
      return weighted_sum(attention_reference(shape, at), douts);
    };
    expect_close(out.values(), attention_reference(shape, qkvs), activation_rounding(), "out");
    const Doubles actual = dqkv.values();
    double largest = 0.0;
    for (const double value : actual) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < actual.size(); i += step) {
      ASSERT_NEAR(actual[i], derivative(loss, qkvs, i), tolerance * largest)
          << i << " of heads of " << shape.width / shape.heads;
    }
  }
};

TEST_P(AttentionConformance, MatchesDefinitionAndItsDerivatives) {
  check({2, 11, 0, 3, 15}, 1.0F, 1, 3 * activation_rounding());
}

// Longer than one block of queries, and heads of every size that kernels specialise.
TEST_P(AttentionConformance, JoinsBlocksOfQueries) {
  for (const int64_t head_width : {4, 40, 64, 96, 160}) {
    const int64_t seq_len = head_width < 64 ? 150 : 70;
    const float size = 2.0F / std::sqrt(std::sqrt(static_cast<float>(head_width)));
    const auto step = static_cast<size_t>(seq_len * 3 * head_width / 11);
    check({1, seq_len, 0, 1, head_width}, size, step, 5 * activation_rounding());
  }
}

TEST_P(AttentionConformance, LaterQueriesAloneGiveTheSame) {
  AttentionShape shape{1, 70, 0, 2, 8};
  const DeviceTensor qkv = activation(random_floats(shape.seq_len * 3 * shape.width, 1));
  const auto attend = [&] {
    const DeviceTensor out = activation(shape.seq_len * shape.width);
    kernels_->attention(shape, qkv, sums(shape.seq_len * shape.heads), out);
    return out.values();
  };
  const Doubles all = attend();
  shape.first = 67;
  const Doubles some = attend();
  for (auto i = static_cast<size_t>(shape.first * shape.width); i < all.size(); ++i) {
    EXPECT_NEAR(some[i], all[i], activation_rounding()) << i;
  }
  EXPECT_EQ(some[0], 7.0) << "rows before `first` are not written";
}

// The mean loss; replaces the logits by its gradient.
inline double cross_entropy_reference(Doubles& logits, std::span<const int32_t> targets) {
  const size_t vocabulary = logits.size() / targets.size();
  const auto rows = static_cast<double>(targets.size());
  double loss = 0.0;
  for (size_t row = 0; row < targets.size(); ++row) {
    const std::span of_row = std::span(logits).subspan(row * vocabulary, vocabulary);
    double& target = of_row[static_cast<size_t>(targets[row])];
    double sum = 0.0;
    for (const double logit : of_row) sum += std::exp(logit);
    loss += (std::log(sum) - target) / rows;
    for (double& logit : of_row) logit = std::exp(logit) / sum / rows;
    target -= 1.0 / rows;
  }
  return loss;
}

TEST_P(KernelsConformance, CrossEntropyMatchesDefinitionAndItsDerivative) {
  for (const int64_t vocabulary : {13, 1203}) {
    const std::vector<int32_t> targets = {0, 12, 5, 5, static_cast<int32_t>(vocabulary - 1)};
    const LogitsShape shape{5, vocabulary, kernels_->logits_stride(vocabulary)};
    const auto stored = spread(random_floats(5 * vocabulary, 1, 4.0F), 5, shape.stride);
    const DeviceTensor logits = activation(stored);
    const DeviceTensor same = activation(stored);
    const DeviceIndices on_device = indices(targets);
    Doubles expected = dense(logits.values(), 5, vocabulary);
    const double loss = cross_entropy_reference(expected, targets);
    kernels_->cross_entropy_gradient(shape, on_device.data(), 1.0F, same);
    kernels_->cross_entropy_gradient(shape, on_device.data(), 8.0F, logits);
    EXPECT_NEAR(kernels_->take_loss(), 2 * loss, 2e-6 * loss) << "losses are added";
    EXPECT_EQ(kernels_->take_loss(), 0.0) << "and taken once";
    expect_close(dense(logits.values(), 5, vocabulary), times(8.0, expected), activation_rounding(),
                 "dlogits");
  }
}

TEST_P(KernelsConformance, CrossEntropyOfLargeLogitsStaysFinite) {
  const float large = activations() == DType::fp16 ? 6e4F : 1e30F;
  const LogitsShape shape{1, 5, kernels_->logits_stride(5)};
  const DeviceIndices targets = indices(std::vector<int32_t>{2});
  const DeviceTensor logits =
      activation(spread({large, -large, 3e4F, 0.0F, 1.0F}, 1, shape.stride));
  const Doubles stored = logits.values();
  kernels_->cross_entropy_gradient(shape, targets.data(), 1.0F, logits);
  EXPECT_NEAR(kernels_->take_loss(), stored[0] - stored[2], 1e-6 * large);
  EXPECT_EQ(dense(logits.values(), 1, 5), (Doubles{1.0, 0.0, -1.0, 0.0, 0.0}));
}

TEST_P(KernelsConformance, EmbeddingAddsRowsAndSendsGradientsBack) {
  constexpr int64_t kWidth = 13;
  const std::vector<int32_t> tokens = {3, 3, 0, 6, 3, 6};
  const DeviceIndices on_device = indices(tokens);
  const DeviceIndices sorted = indices(std::vector<int32_t>{2, 0, 1, 4, 3, 5});
  const DeviceIndices bounds = indices(std::vector<int32_t>{0, 1, 4, 6});
  const TokenGrid grid{on_device.data(), std::ssize(tokens), 3, 0, kWidth};
  const DeviceTensor wte = parameter(random_floats(7 * kWidth, 1));
  const DeviceTensor wpe = parameter(random_floats(5 * kWidth, 2));
  const DeviceTensor dx = activation(random_floats(std::ssize(tokens) * kWidth, 3));
  const Doubles tes = wte.values();
  const Doubles pes = wpe.values();
  const Doubles dxs = dx.values();
  Doubles x(dxs.size());
  Doubles dwte(tes.size());
  Doubles dwpe(pes.size());
  for (size_t i = 0; i < dxs.size(); ++i) {
    const size_t row = i / kWidth;
    const size_t token = static_cast<size_t>(tokens[row]) * kWidth + i % kWidth;
    const size_t position = row % 3 * kWidth + i % kWidth;
    x[i] = tes[token] + pes[position];
    dwte[token] += dxs[i];
    dwpe[position] += dxs[i];
  }
  const DeviceTensor y = activation(std::ssize(tokens) * kWidth);
  kernels_->embed(grid, wte, wpe, y);
  expect_close(y.values(), x, activation_rounding(), "x");
  for (const int sum : {1, 2}) {
    kernels_->embed_backward(grid, {sorted.data(), bounds.data(), 3}, dx, {wte, sum > 1},
                             {wpe, sum > 1});
    expect_close(wte.values(), times(sum, dwte), gradient_rounding(), "dwte");
    expect_close(wpe.values(), times(sum, dwpe), gradient_rounding(), "dwpe");
  }
}

// Every suite above, on each of `cases` (a container of KernelsUnderTest).
#define ZR_INSTANTIATE_KERNELS_CONFORMANCE(cases)                                                  \
  INSTANTIATE_TEST_SUITE_P(Kernels, KernelsConformance, ::testing::ValuesIn(cases), name_of_case); \
  INSTANTIATE_TEST_SUITE_P(Kernels, AttentionConformance, ::testing::ValuesIn(cases), name_of_case)

}  // namespace zerorun::train::testing
