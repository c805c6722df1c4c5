#pragma once

#include "tests/train/model/kernels_under_test.h"
#include "tests/train/model/linear_conformance.h"

// Every implementation of Kernels against float64 formulas.
namespace zerorun::train::testing {

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

class LayerNormConformance : public KernelsSuite {};

TEST_P(LayerNormConformance, MatchesDefinitionAndItsDerivatives) {
  for (const LayerNormShape shape :
       {LayerNormShape{1, 3}, LayerNormShape{5, 17}, LayerNormShape{70, 8}, LayerNormShape{2, 65},
        LayerNormShape{9, 272}, LayerNormShape{2, 1030}}) {
    const DeviceTensor x = activation(random_floats(shape.rows * shape.width, 1, 2.0F));
    const DeviceTensor dy = activation(random_floats(shape.rows * shape.width, 2));
    const DeviceTensor gain = parameter(random_floats(shape.width, 4));
    const DeviceTensor bias = parameter(random_floats(shape.width, 5));
    const Doubles xs = x.values();
    const Doubles dys = dy.values();
    const Doubles gains = gain.values();
    const Doubles biases = bias.values();
    const auto loss = [&](const Doubles& at, const Doubles& gains_at, const Doubles& biases_at) {
      return weighted_sum(layer_norm_reference(shape, at, gains_at, biases_at), dys);
    };

    const DeviceTensor moments = sums(2 * shape.rows);
    const DeviceTensor y = activation(shape.rows * shape.width);
    kernels_->layer_norm(shape, x, gain, bias, moments, y);
    expect_close(y.values(), layer_norm_reference(shape, xs, gains, biases), activation_rounding(),
                 "y");

    const Doubles expected =
        gradient([&](const Doubles& at) { return loss(at, gains, biases); }, xs);
    const Doubles expected_gain =
        gradient([&](const Doubles& at) { return loss(xs, at, biases); }, gains);
    const Doubles expected_bias =
        gradient([&](const Doubles& at) { return loss(xs, gains, at); }, biases);
    const DeviceTensor dx = activation(random_floats(shape.rows * shape.width, 3));
    const Doubles start = dx.values();
    const DeviceTensor dgain = parameter(shape.width);
    const DeviceTensor dbias = parameter(shape.width);
    const double tolerance = 3 * activation_rounding();
    kernels_->layer_norm_backward(shape, {x, moments, gain}, dy,
                                  {{dx, true}, {dgain, false}, {dbias, false}});
    expect_close(dgain.values(), expected_gain, 3 * gradient_rounding(), "dgain");
    expect_close(dbias.values(), expected_bias, 3 * gradient_rounding(), "dbias");
    expect_close(dx.values(), plus(expected, start), tolerance, "dx, added");
    kernels_->layer_norm_backward(shape, {x, moments, gain}, dy,
                                  {{dx, false}, {dgain, true}, {dbias, true}});
    expect_close(dx.values(), expected, tolerance, "dx");
    expect_close(dgain.values(), times(2, expected_gain), 3 * gradient_rounding(), "dgain, added");
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

class AttentionConformance : public KernelsSuite {
 protected:
  // Output and, if `dqkv` is given, the gradient of sum(out * dout).
  DeviceTensor attend(const AttentionShape& shape, const DeviceTensor& qkv,
                      const DeviceTensor* dout = nullptr, const DeviceTensor* dqkv = nullptr) {
    const int64_t rows = shape.batch * shape.seq_len;
    DeviceTensor out = activation(rows * shape.width);
    const DeviceTensor log_sum = sums(rows * shape.heads);
    kernels_->attention(shape, qkv, log_sum, out);
    if (dqkv != nullptr) kernels_->attention_backward(shape, {qkv, out, log_sum}, *dout, *dqkv);
    device_->inline_stream().synchronize();
    return out;
  }
};

TEST_P(AttentionConformance, MatchesDefinitionAndItsDerivatives) {
  const AttentionShape shape{2, 11, 0, 3, 15};
  const DeviceTensor qkv = activation(random_floats(shape.batch * shape.seq_len * 3 * 15, 1));
  const DeviceTensor dout = activation(random_floats(shape.batch * shape.seq_len * 15, 2));
  const DeviceTensor dqkv = activation(shape.batch * shape.seq_len * 3 * 15);
  const Doubles qkvs = qkv.values();
  const Doubles douts = dout.values();
  const DeviceTensor out = attend(shape, qkv, &dout, &dqkv);
  expect_close(out.values(), attention_reference(shape, qkvs), activation_rounding(), "out");
  const Doubles expected = gradient(
      [&](const Doubles& at) { return weighted_sum(attention_reference(shape, at), douts); }, qkvs);
  expect_close(dqkv.values(), expected, 3 * activation_rounding(), "dqkv");
}

// Longer than one block of queries, and heads of every size that kernels specialise; the derivative
// at a few elements only.
TEST_P(AttentionConformance, JoinsBlocksOfQueries) {
  for (const int64_t head_width : {4, 40, 64, 96, 160}) {
    const AttentionShape shape{1, head_width < 64 ? 150 : 70, 0, 1, head_width};
    const float size = 2.0F / std::sqrt(std::sqrt(static_cast<float>(head_width)));
    const DeviceTensor qkv = activation(random_floats(shape.seq_len * 3 * head_width, 1, size));
    const DeviceTensor dout = activation(random_floats(shape.seq_len * head_width, 2));
    const DeviceTensor dqkv = activation(shape.seq_len * 3 * head_width);
    const Doubles qkvs = qkv.values();
    const Doubles douts = dout.values();
    const DeviceTensor out = attend(shape, qkv, &dout, &dqkv);
    expect_close(out.values(), attention_reference(shape, qkvs), activation_rounding(), "out");
    const auto loss = [&](const Doubles& at) {
      return weighted_sum(attention_reference(shape, at), douts);
    };
    const Doubles actual = dqkv.values();
    double largest = 0.0;
    for (const double value : actual) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < actual.size(); i += actual.size() / 11) {
      EXPECT_NEAR(actual[i], derivative(loss, qkvs, i), 5 * activation_rounding() * largest)
          << i << " of heads of " << head_width;
    }
  }
}

TEST_P(AttentionConformance, LaterQueriesAloneGiveTheSame) {
  AttentionShape shape{1, 70, 0, 2, 8};
  const DeviceTensor qkv = activation(random_floats(shape.seq_len * 3 * shape.width, 1));
  const Doubles all = attend(shape, qkv).values();
  shape.first = 67;
  const Doubles some = attend(shape, qkv).values();
  const auto begin = static_cast<size_t>(shape.first * shape.width);
  for (size_t i = begin; i < all.size(); ++i) {
    EXPECT_NEAR(some[i], all[i], activation_rounding()) << i;
  }
  EXPECT_EQ(some[0], 7.0) << "rows before `first` are not written";
}

inline double cross_entropy_reference(const Doubles& logits, std::span<const int32_t> targets) {
  const size_t vocabulary = logits.size() / targets.size();
  double loss = 0.0;
  for (size_t row = 0; row < targets.size(); ++row) {
    double sum = 0.0;
    for (size_t i = 0; i < vocabulary; ++i) sum += std::exp(logits[row * vocabulary + i]);
    loss += std::log(sum) - logits[row * vocabulary + static_cast<size_t>(targets[row])];
  }
  return loss / static_cast<double>(targets.size());
}

class CrossEntropyConformance : public KernelsSuite {
 protected:
  // Logits in rows that lie as the kernels ask for, and what is stored of them.
  DeviceTensor logits_of(const LogitsShape& shape, const std::vector<float>& dense) {
    std::vector<float> stored(static_cast<size_t>(shape.rows * shape.stride), 1e4F);
    for (int64_t row = 0; row < shape.rows; ++row) {
      std::copy_n(dense.begin() + row * shape.vocabulary, shape.vocabulary,
                  stored.begin() + row * shape.stride);
    }
    return activation(stored);
  }
  static Doubles dense(const LogitsShape& shape, const Doubles& stored) {
    Doubles values;
    for (int64_t row = 0; row < shape.rows; ++row) {
      const auto begin = stored.begin() + row * shape.stride;
      values.insert(values.end(), begin, begin + shape.vocabulary);
    }
    return values;
  }
  LogitsShape shape_of(int64_t rows, int64_t vocabulary) const {
    return {rows, vocabulary, kernels_->logits_stride(vocabulary)};
  }
};

TEST_P(CrossEntropyConformance, MatchesDefinitionAndItsDerivative) {
  for (const int64_t vocabulary : {13, 1203}) {
    std::vector<int32_t> targets = {0, 12, 5, 5, static_cast<int32_t>(vocabulary - 1)};
    const LogitsShape shape = shape_of(5, vocabulary);
    const DeviceTensor logits = logits_of(shape, random_floats(5 * vocabulary, 1, 4.0F));
    const DeviceIndices on_device = indices(targets);
    const Doubles values = dense(shape, logits.values());
    const double expected = cross_entropy_reference(values, targets);
    const DeviceTensor same = logits_of(shape, random_floats(5 * vocabulary, 1, 4.0F));
    kernels_->cross_entropy_gradient(shape, on_device.data(), 1.0F, same);
    kernels_->cross_entropy_gradient(shape, on_device.data(), 8.0F, logits);
    EXPECT_NEAR(kernels_->take_loss(), 2 * expected, 2e-6 * expected) << "losses are added";
    EXPECT_EQ(kernels_->take_loss(), 0.0) << "and taken once";

    Doubles scaled;
    for (size_t row = 0; row < targets.size(); ++row) {
      const auto begin = values.begin() + static_cast<int64_t>(row) * vocabulary;
      double sum = 0.0;
      for (auto at = begin; at < begin + vocabulary; ++at) sum += std::exp(*at);
      for (auto at = begin; at < begin + vocabulary; ++at) {
        const double hit = at - begin == targets[row] ? 1.0 : 0.0;
        scaled.push_back((std::exp(*at) / sum - hit) * 8.0 / 5.0);
      }
    }
    expect_close(dense(shape, logits.values()), scaled, activation_rounding(), "dlogits");
  }
}

TEST_P(CrossEntropyConformance, LargeLogitsStayFinite) {
  const float large = activations() == DType::fp16 ? 6e4F : 1e30F;
  const LogitsShape shape = shape_of(1, 5);
  const DeviceIndices targets = indices(std::vector<int32_t>{2});
  const DeviceTensor logits = logits_of(shape, {large, -large, 3e4F, 0.0F, 1.0F});
  const Doubles stored = logits.values();
  kernels_->cross_entropy_gradient(shape, targets.data(), 1.0F, logits);
  EXPECT_NEAR(kernels_->take_loss(), stored[0] - stored[2], 1e-6 * large);
  EXPECT_EQ(dense(shape, logits.values()), (Doubles{1.0, 0.0, -1.0, 0.0, 0.0}));
}

class EmbeddingConformance : public KernelsSuite {};

TEST_P(EmbeddingConformance, AddsRowsAndSendsGradientsBack) {
  constexpr int64_t kWidth = 13;
  constexpr int64_t kPositions = 5;
  constexpr int64_t kVocabulary = 7;
  const std::vector<int32_t> tokens = {3, 3, 0, 6, 3, 6};
  const std::vector<int32_t> rows_by_token = {2, 0, 1, 4, 3, 5};
  const std::vector<int32_t> begins = {0, 1, 4, 6};
  const int64_t numel = std::ssize(tokens) * kWidth;
  const DeviceIndices on_device = indices(tokens);
  const DeviceIndices sorted = indices(rows_by_token);
  const DeviceIndices bounds = indices(begins);
  const TokenGrid grid{on_device.data(), std::ssize(tokens), 3, 0, kWidth};
  const DeviceTensor wte = parameter(random_floats(kVocabulary * kWidth, 1));
  const DeviceTensor wpe = parameter(random_floats(kPositions * kWidth, 2));
  const DeviceTensor dx = activation(random_floats(numel, 3));
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
  const DeviceTensor y = activation(numel);
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
#define ZR_INSTANTIATE_KERNELS_CONFORMANCE(cases)                                                 \
  INSTANTIATE_TEST_SUITE_P(Kernels, LinearConformance, ::testing::ValuesIn(cases), name_of_case); \
  INSTANTIATE_TEST_SUITE_P(Kernels, LayerNormConformance, ::testing::ValuesIn(cases),             \
                           name_of_case);                                                         \
  INSTANTIATE_TEST_SUITE_P(Kernels, AttentionConformance, ::testing::ValuesIn(cases),             \
                           name_of_case);                                                         \
  INSTANTIATE_TEST_SUITE_P(Kernels, CrossEntropyConformance, ::testing::ValuesIn(cases),          \
                           name_of_case);                                                         \
  INSTANTIATE_TEST_SUITE_P(Kernels, EmbeddingConformance, ::testing::ValuesIn(cases), name_of_case)

}  // namespace zerorun::train::testing
