// What a device decides about a step, against the host's decision and its norm; Lamb's trust
// ratios, and the orthogonalization of Muon's matrices.
#include "amp/step_decider.h"
#include "device/newton_schulz.h"
#include "tests/device/conformance.h"
#include "zerorun/exact_sum.h"

namespace zerorun::testing {
namespace {

struct Votes {
  int64_t any = 2;
  int64_t late = 0;
  // Of three ranks.
  int64_t sum = 21;
  int64_t squares = 147;
};

struct DecisionConformance : DeviceConformance {
  // `cut`: what comes behind it is on the host.
  void decide(const std::vector<float>& gradient, const StepRule& rule, TensorView decision,
              const Votes& votes = {}, std::optional<int64_t> cut = {}) {
    const int64_t numel = std::ssize(gradient);
    std::vector<SquaresSegment> segments = {{.numel = cut.value_or(numel)}};
    if (cut) segments.push_back({.begin = *cut, .numel = numel - *cut, .sum = 1});
    const auto src = array(gradient);
    const auto words = array(std::vector<int64_t>(segments.size() * ExactSum::kWords));
    const auto common = array(std::vector<int64_t>{votes.any, votes.late});
    const auto same = array(std::vector<int64_t>{votes.sum, votes.squares});
    device_->sum_of_squares(*stream_, src, segments, words);
    device_->decide(*stream_, {.words = words, .votes = common, .same = same, .ranks = 3}, rule,
                    decision);
    stream_->synchronize();
  }
  std::vector<float> decided(const std::vector<float>& gradient, const StepRule& rule,
                             const Votes& votes = {}, std::optional<int64_t> cut = {}) {
    const auto decision = array(std::vector<float>{3.0F, 3.0F});
    decide(gradient, rule, decision, votes, cut);
    return decision.host();
  }

  // The decision of the host, about the same gradient.
  static std::vector<float> expected(const std::vector<float>& gradient, const Config& config,
                                     double divisor) {
    ExactSum sum;
    for (size_t i = 0; i < gradient.size(); i += kNormBlock) {  // one is finite, or is not
      double squares = 0.0;
      for (size_t k = i; k < i + kNormBlock; ++k) squares += double{gradient[k]} * gradient[k];
      sum.add(squares);
    }
    const StepDecision decision =
        StepDecider(config, divisor).decide(std::sqrt(sum.value()), sum.non_finite_terms() == 0);
    if (!decision.applied) return {0.0F, 0.0F};
    return {decision.factor, 1.0F};
  }
};

TEST_P(DecisionConformance, HasTheBitsOfTheHosts) {
  for (const auto& [divisor, clipping, dtype] :
       each(std::array{1.0, 8.0, 3.0, 3 * 65536.0}, std::array{0.0, 1e-3, 0.7, 1e9}, kFp32Bf16)) {
    Config config;
    config.gradient_clipping = clipping;
    config.precision.param_dtype = dtype;
    config.precision.check_grad_overflow = false;
    const StepRule rule = StepDecider(config, divisor).rule();
    for (int i = 0; i < 12; ++i) {
      // Norms over 20 powers of ten; zeros.
      std::vector<float> gradient(512);
      for (size_t k = 0; k < gradient.size() && i > 0; ++k) {
        gradient[k] = std::pow(10.0F, static_cast<float>(2 * i - 12)) *
                      std::sin(static_cast<float>(k) + static_cast<float>(i));
      }
      if (i == 11) gradient[300] = kInfinity;
      EXPECT_EQ(bits_of(decided(gradient, rule)), bits_of(expected(gradient, config, divisor)))
          << divisor << " " << clipping << " " << i;
    }
  }
}

TEST_P(DecisionConformance, CountsThePartOfTheGradientThatIsOnTheHost) {
  const std::vector<float> found = decided({3.0F, 4.0F}, {.max_norm = 1.0}, {}, 1);
  EXPECT_FLOAT_EQ(found[0], 0.2F);  // a norm of 5
  EXPECT_EQ(found[1], 1.0F);
  EXPECT_EQ(decided({3.0F, kInfinity}, {.max_norm = 1.0}, {}, 1), (std::vector<float>{0.0F, 0.0F}));
}

TEST_P(DecisionConformance, TakesNoStepThatTheRanksDoNotAgreeOn) {
  const std::vector<float> gradient(256, 0.5F);
  const std::vector<float> none = {0.0F, 0.0F};
  EXPECT_EQ(decided(gradient, {}), (std::vector<float>{1.0F, 1.0F}));
  EXPECT_EQ(decided(gradient, {}, {.any = 0}), none);
  EXPECT_EQ(decided(gradient, {}, {.late = 1}), none);
  EXPECT_EQ(decided(gradient, {}, {.sum = 21, .squares = 149}), none);  // 6, 7 and 8
  EXPECT_EQ(decided({1.0F, kInfinity}, {}), none);
}

TEST_P(DecisionConformance, IsReadByTheUpdate) {
  const std::vector<float> ones(1000, 1.0F);
  const std::vector<float> nan(4, kNan);
  for (const auto& [aligned, taken] : each(kEither, kEither)) {
    const auto decision = array(std::vector<float>(2));
    decide(taken ? ones : nan, {.average = 0.25}, decision);
    const auto master = array(ones, aligned ? 0 : 1);
    const auto state = array(ones, aligned ? 0 : 3);
    const auto grad = array(ones, aligned ? 0 : 5);
    // grad_scale is not what counts
    UpdateSegment segment{.numel = 1000};
    segment.scalars = {.rule = UpdateRule::sgd, .lr = 0.5F, .beta1 = 0.5, .grad_scale = 77.0F};
    segment.scalars.step = 2;
    update(
        {.master = master, .grad = grad, .param = master, .states = {state}, .decision = decision},
        {segment});
    EXPECT_EQ(state.host(), std::vector<float>(1000, taken ? 0.75F : 1.0F));
    EXPECT_EQ(master.host(), std::vector<float>(1000, taken ? 0.625F : 1.0F));
  }
}

struct TrustRatioConformance : DecisionConformance {
  static constexpr int64_t kNumel = 300;  // of a parameter

  // The sums of the squares of parameters of kNumel elements each.
  std::vector<int64_t> sums_of(const std::vector<float>& values) {
    const int64_t count = std::ssize(values) / kNumel;
    std::vector<SquaresSegment> segments;
    for (int64_t i = 0; i < count; ++i) segments.push_back({i * kNumel, kNumel, i});
    const auto src = array(values);
    const auto words = array(std::vector<int64_t>(static_cast<size_t>(count * ExactSum::kWords)));
    device_->sum_of_squares(*stream_, src, segments, words);
    return words.host();
  }
};

TEST_P(TrustRatioConformance, AreTheNormsOfParametersOverThoseOfDirectionsWithinLimits) {
  // Elements of each parameter and direction; the last two ratios are beyond the limits.
  const std::vector<float> parameters = {2.0F, 1e-30F, 0.0F, 3.0F, 5.0F, 1.0F};
  const std::vector<float> directions = {1.0F, 3e-30F, 7.0F, 0.0F, 0.1F, 1000.0F};
  const std::vector<float> expected = {2.0F, 1.0F / 3.0F, 1.0F, 1.0F, 10.0F, 0.25F};
  const auto repeated = [](const std::vector<float>& of) {
    std::vector<float> values;
    for (const float value : of) values.insert(values.end(), kNumel, value);
    return values;
  };
  const std::vector<int64_t> norms = sums_of(repeated(parameters));
  const std::vector<int64_t> steps = sums_of(repeated(directions));
  std::vector<int64_t> words = norms;
  words.insert(words.end(), steps.begin(), steps.end());
  for (const bool has_host : {false, true}) {
    std::vector<int64_t> all = words;
    if (has_host) {  // of the first parameter as much again, of its direction three times more
      const std::vector<int64_t> four = sums_of(std::vector<float>(kNumel, std::sqrt(3.0F)));
      all.resize(2 * words.size());
      std::copy_n(norms.begin(), ExactSum::kWords, all.begin() + std::ssize(words));
      std::copy(four.begin(), four.end(), all.begin() + std::ssize(words) + std::ssize(norms));
    }
    const auto sums = array(all);
    const auto ratios = array(std::vector<float>(expected.size(), 9.0F));
    device_->trust_ratios(*stream_, sums, {.smallest = 0.25, .largest = 10.0}, ratios);
    const std::vector<float> found = ratios.host();
    EXPECT_FLOAT_EQ(found[0], has_host ? std::sqrt(2.0F) : 2.0F);  // 8 over 4, or 4 over 1
    for (size_t i = 1; i < expected.size(); ++i) EXPECT_FLOAT_EQ(found[i], expected[i]) << i;
  }
}

TEST_P(TrustRatioConformance, AreReadByTheUpdate) {
  constexpr float kLr = 0.5F;
  const std::vector<float> of_parameters = {0.5F, 2.0F, 4.0F};
  for (const auto& [aligned, with] : each(kEither, kEither)) {
    const auto ratios = array(of_parameters);
    const auto master = array(std::vector<float>(900, 1.0F), aligned ? 0 : 1);
    const auto mean = array(std::vector<float>(900, 0.25F), aligned ? 0 : 3);
    const auto square = array(std::vector<float>(900, 0.25F), aligned ? 0 : 5);
    std::vector<UpdateSegment> segments;
    for (const int64_t parameter : {2, 0, 1}) {
      UpdateSegment& segment = segments.emplace_back();
      segment = {.begin = 300 * std::ssize(segments) - 300, .numel = 300};
      segment.scalars = {.rule = UpdateRule::lamb, .lr = kLr, .eps = 0.0F};
      segment.parameter = parameter;
    }
    UpdateTensors tensors{.master = master, .param = master, .states = {mean, square}};
    if (with) tensors.trust_ratios = ratios;
    update(tensors, segments);
    const std::vector<float> updated = master.host();
    for (size_t i = 0; i < 3; ++i) {
      const float ratio = with ? of_parameters[static_cast<size_t>(segments[i].parameter)] : 1.0F;
      EXPECT_EQ(updated[300 * i], 1.0F - kLr * ratio * 0.5F) << i;
      EXPECT_EQ(updated[300 * i + 299], 1.0F - kLr * ratio * 0.5F) << i;
    }
  }
}

TEST_P(TrustRatioConformance, OfOtherSizesOrRulesAreErrors) {
  const auto sums = array(std::vector<int64_t>(3 * ExactSum::kWords));
  const auto ratios = array(std::vector<float>(1));
  EXPECT_THROW(device_->trust_ratios(*stream_, sums, {}, ratios), InternalError);
  const auto values = array(std::vector<float>(8));
  const auto update_by = [&](UpdateRule rule, int64_t parameter) {
    UpdateSegment segment{.numel = 8};
    segment.scalars.rule = rule;
    segment.parameter = parameter;
    update({.master = values,
            .grad = values,
            .param = values,
            .states = {values, values},
            .trust_ratios = ratios},
           {segment});
  };
  EXPECT_THROW(update_by(UpdateRule::lamb, 1), InternalError);
  EXPECT_THROW(update_by(UpdateRule::adam, 0), InternalError);
}

ZR_ON_ALL_DEVICES(TrustRatioConformance);
ZR_ON_ALL_DEVICES(DecisionConformance);

// Device::orthogonalize against the iteration in double.
using Matrix = std::vector<double>;

// Of `a`, which has these rows, and `b`, or the transposed `b`.
Matrix product(const Matrix& a, const Matrix& b, size_t rows, bool transposed = false) {
  const size_t inner = a.size() / rows;
  const size_t cols = b.size() / inner;
  Matrix out(rows * cols);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t k = 0; k < inner; ++k) {
      for (size_t j = 0; j < cols; ++j) {
        out[i * cols + j] += a[i * inner + k] * (transposed ? b[j * inner + k] : b[k * cols + j]);
      }
    }
  }
  return out;
}

Matrix orthogonalized(Matrix x, size_t rows, const Orthogonalization& how) {
  double squares = 0.0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= std::sqrt(squares) + kNewtonSchulzEps;
  for (int step = 0; step < how.steps; ++step) {
    const auto [a, b, c] = newton_schulz_step(how, step);
    const Matrix gram = product(x, x, rows, true);
    Matrix polynomial = product(gram, gram, rows);
    for (size_t i = 0; i < polynomial.size(); ++i) {
      polynomial[i] = c * polynomial[i] + b * gram[i] + (i % (rows + 1) == 0 ? a : 0.0);
    }
    x = product(polynomial, x, rows);
  }
  return x;
}

struct OrthogonalizeConformance : DeviceConformance {
  // The largest difference of an element from the iteration in double.
  double error_of(int64_t rows, int64_t cols, const Orthogonalization& how) {
    const std::vector<float> values = random_normal<float>(rows * cols, 7);
    const auto matrix = array(values);
    const auto work =
        array(std::vector<float>(static_cast<size_t>(orthogonalize_work(rows, cols))));
    device_->orthogonalize(*stream_, matrix, rows, cols, how, work);
    const Matrix expected =
        orthogonalized({values.begin(), values.end()}, static_cast<size_t>(rows), how);
    const std::vector<float> found = matrix.host();
    double error = 0.0;
    for (size_t i = 0; i < found.size(); ++i) {
      error = std::max(error, std::abs(found[i] - expected[i]));
    }
    return error;
  }
};

// Elements are up to about 0.5 here. Inputs of a product in TF32 are off by up to 2^-11 of them. In
// double, with inputs that are off by as much at random, 300 matrices differed by at most 0.012
// from the iteration without. A single row, whose singular value is 1, differed by up to 0.17 with
// Polar Express: the first two steps take it to 0.3 as the difference of large terms. Products in
// fp32, without tensor cores, would be several times slower on a GPU.
TEST_P(OrthogonalizeConformance, FollowsTheIterationInDoubleWithinWhatItsProductsKeep) {
  const double bound = device_->is_host() ? 2e-5 : 2e-2;
  for (const bool polar_express : {false, true}) {
    const double row_bound = device_->is_host() ? 2e-5 : polar_express ? 0.2 : 2e-2;
    for (const int steps : {1, 4, 5, 9}) {
      const Orthogonalization how{steps, polar_express};
      for (const auto& [rows, cols] : {std::pair(24, 40), std::pair(40, 24), std::pair(33, 33),
                                       std::pair(24, 100), std::pair(100, 24)}) {
        EXPECT_LT(error_of(rows, cols, how), bound) << steps << polar_express << rows;
      }
      EXPECT_LT(error_of(1, 7, how), row_bound) << steps << polar_express;
    }
  }
  if (!device_->is_host()) {
    EXPECT_GT(error_of(24, 40, {.steps = 5}), 1e-4);
  }
  // More than a block of a symmetric product.
  EXPECT_LT(error_of(194, 200, {.steps = 2}), bound);
  EXPECT_LT(error_of(194, 390, {.steps = 2}), bound);
}

// What rounding leaves of singular values that are 0 grows with each step, to 1 and not beyond.
TEST_P(OrthogonalizeConformance, KeepsMatricesOfRankOneBounded) {
  for (const bool polar_express : {false, true}) {
    std::vector<float> values(24 * 100);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>((1 + i / 100) * (i % 100)) * 0.001F;
    }
    const auto matrix = array(values);
    const auto work = array(std::vector<float>(orthogonalize_work(24, 100)));
    device_->orthogonalize(*stream_, matrix, 24, 100, {100, polar_express}, work);
    for (const float value : matrix.host()) EXPECT_LT(std::abs(value), 1.3F);
  }
}

ZR_ON_ALL_DEVICES(OrthogonalizeConformance);

}  // namespace
}  // namespace zerorun::testing
