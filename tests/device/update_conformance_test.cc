#include "tests/device/update_reference.h"

namespace zerorun::testing {
namespace {

// One update, with what it updates.
struct Case {
  Storage storage{};
  int states = 0;
  int64_t numel = 0;
  std::vector<UpdateSegment> segments;
  bool aligned = false;  // tensors begin where vectors may
  bool one_call = true;  // else one for each segment
};

struct UpdateConformance : DeviceConformance {
  // Updates on the device and compares every bit with the scalar formulas.
  void check(const Case& c) {
    const Storage& storage = c.storage;
    const Values before = random_values(c.numel, storage);
    const auto stored = [&](const std::vector<float>& values, DType dtype, int64_t offset,
                            bool is_signed = true) {
      return Stored(*device_, *stream_, values, dtype, is_signed, c.aligned ? 0 : offset);
    };
    const Stored master = stored(before.master, storage.master, 1);
    const Stored grad = stored(before.grad, storage.grad, 5);
    const Stored param = stored(before.param, storage.param.value_or(DType::fp32), 7);
    const Stored state0 = stored(before.states[0], storage.state, 2);
    const Stored state1 = stored(before.states[1], storage.state, 3, false);
    UpdateTensors tensors{.master = master, .grad = grad, .param = storage.param ? param : master};
    if (c.states > 0) tensors.states[0] = state0;
    if (c.states > 1) tensors.states[1] = state1;
    tensors.scales = {state0.scales(), state1.scales()};
    if (c.one_call) {
      device_->update(*stream_, tensors, c.segments);
    } else {
      for (const UpdateSegment& one : c.segments) device_->update(*stream_, tensors, {&one, 1});
    }
    const Values expected = updated(before, c.segments, storage, c.states);
    EXPECT_EQ(bits_of(master.values()), bits_of(expected.master));
    EXPECT_EQ(bits_of(grad.values()), bits_of(before.grad));
    if (storage.param) {
      EXPECT_EQ(bits_of(param.values()), bits_of(expected.param));
    }
    if (c.states > 0) expect_states(c, state0.values(), expected.states[0]);
    if (c.states > 1) expect_states(c, state1.values(), expected.states[1]);
  }

  // Elements that share a block of 8 bits with the end of a segment get its scale.
  static void expect_states(const Case& c, std::vector<float> got, std::vector<float> expected) {
    if (c.storage.state != DType::uint8) {
      EXPECT_EQ(bits_of(got), bits_of(expected));
      return;
    }
    for (const UpdateSegment& segment : c.segments) {
      const auto bits = [&](std::vector<float>& values) {
        const std::span<float> part = part_of(values, segment);
        return bits_of(std::vector<float>(part.begin(), part.end()));
      };
      EXPECT_EQ(bits(got), bits(expected));
    }
  }

  // One parameter, cut before `cuts`.
  static std::vector<UpdateSegment> cut(const UpdateScalars& s, int64_t numel,
                                        std::vector<int64_t> cuts = {}) {
    std::vector<UpdateSegment> segments;
    int64_t begin = 0;
    cuts.push_back(numel);
    for (const int64_t end : cuts) {
      segments.push_back({begin, end - begin, s, 9, 512 + begin});
      begin = end;
    }
    return segments;
  }

  // `count` parts of parameters, not all next to each other, each with scalars of its own.
  static Case many(UpdateRule rule, const Storage& storage, int64_t count) {
    constexpr int64_t kSizes[] = {31, 1, 0, 300, 32, 256, 33, 1027, 65};
    Case c{.storage = storage, .states = states_of(rule)};
    const int64_t grid = storage.state == DType::uint8 ? kStateBlock : 1;
    for (int64_t i = 0; i < count; ++i) {
      UpdateScalars s = scalars_of(rule, i % 2 == 0);
      s.lr *= static_cast<float>(1 + i % 7);
      s.beta1 -= 0.01 * static_cast<double>(i % 5);
      s.grad_scale /= static_cast<float>(1 + i % 3);
      const int64_t begin = (c.numel + i % 4 + grid - 1) / grid * grid;
      c.segments.push_back({begin, kSizes[i % std::ssize(kSizes)], s, i, i % 3 * kStateBlock});
      c.numel = begin + c.segments.back().numel;
    }
    return c;
  }

  static bool is_direction(UpdateRule rule) {
    return rule == UpdateRule::lamb_direction || rule == UpdateRule::muon_direction;
  }
  static std::vector<Storage> storages(UpdateRule rule) {
    if (is_direction(rule)) {
      return {{.param = DType::fp32},
              {.grad = DType::bf16, .param = DType::fp32},
              {DType::bf16, DType::bf16, DType::fp32, DType::bf16}};
    }
    std::vector<Storage> all;
    for (const DType grad : {DType::fp32, DType::bf16, DType::fp16}) {
      all.push_back({.grad = grad});
      for (const DType param : {DType::fp32, DType::bf16, DType::fp16}) {
        all.push_back({DType::fp32, grad, param, DType::fp32});
        all.push_back({DType::fp32, grad, param, DType::bf16});
      }
    }
    for (const DType half : {DType::bf16, DType::fp16}) {
      all.push_back({half, half, std::nullopt, DType::fp32});
      all.push_back({half, half, std::nullopt, half});
    }
    if (rule != UpdateRule::adam) return all;
    all.push_back({.state = DType::uint8});
    all.push_back({DType::fp32, DType::bf16, DType::bf16, DType::uint8});
    all.push_back({DType::bf16, DType::bf16, std::nullopt, DType::uint8});
    return all;
  }
};

TEST_P(UpdateConformance, SgdWithoutMomentumHasNoState) {
  check({{}, 0, 1027, cut(scalars_of(UpdateRule::sgd, false), 1027)});
  check({{DType::bf16, DType::bf16}, 0, 1027, cut(scalars_of(UpdateRule::sgd, true), 1027)});
}

constexpr std::array<Storage, 3> kMixtures = {
    {{DType::fp32, DType::bf16, DType::bf16, DType::fp32},
     {DType::bf16, DType::bf16, std::nullopt, DType::bf16},
     {DType::fp32, DType::bf16, DType::bf16, DType::uint8}}};

TEST_P(UpdateConformance, DoesNotDependOnCutsOrThreads) {
  constexpr int64_t kNumel = 100'001;
  for_thread_counts([&] {
    for (const Storage& storage : kMixtures) {
      const UpdateScalars s = scalars_of(UpdateRule::adam, true);
      check({storage, 2, kNumel, cut(s, kNumel)});
      for (const bool one_call : {true, false}) {
        check({.storage = storage,
               .states = 2,
               .numel = kNumel,
               .segments = cut(s, kNumel, {256, 1024, 70'144}),
               .one_call = one_call});
      }
      // More than one kernel takes, and more than there are threads.
      Case c = many(UpdateRule::adam, storage, 300);
      c.aligned = true;
      check(c);
    }
  });
}

TEST_P(UpdateConformance, SegmentsHaveTheBitsOfTheScalarFormulaForEveryRuleAndType) {
  for (const UpdateRule rule : kRules) {
    for (const auto& [storage, aligned] : each(storages(rule), kEither)) {
      SCOPED_TRACE(::testing::Message()
                   << "rule " << static_cast<int>(rule) << " master " << name_of(storage.master)
                   << " grad " << name_of(storage.grad) << " state " << name_of(storage.state)
                   << " aligned " << aligned);
      Case c = many(rule, storage, 18);
      c.aligned = aligned;
      check(c);
      if (HasFailure()) return;
    }
  }
}

TEST_P(UpdateConformance, NonFiniteGradientsShowInTheResult) {
  for (const auto& [rule, value] :
       each(std::array{UpdateRule::adam, UpdateRule::sgd, UpdateRule::adagrad},
            std::array{kInfinity, kNan})) {
    const auto master = array(std::vector<float>(40, 1.0F));
    const auto state0 = array(std::vector<float>(40, 0.0F));
    const auto state1 = array(std::vector<float>(40, 0.0F));
    const auto grad = array(std::vector<float>(40, value));
    const auto param = array(std::vector<Bf16>(40));
    update({.master = master, .grad = grad, .param = param, .states = {state0, state1}},
           cut(scalars_of(rule, true), 40));
    for (const Bf16 result : param.host()) EXPECT_FALSE(std::isfinite(to_float(result)));
  }
}

TEST_P(UpdateConformance, StatesIn8BitsKeepInfinityAndNan) {
  for (const float value : {kInfinity, kNan}) {
    const auto master = array(std::vector<float>(300, 1.0F));
    const auto codes = array(std::vector<uint8_t>(300));
    const auto codes_sq = array(std::vector<uint8_t>(300));
    const auto scales = array(std::vector<float>(2));
    const auto scales_sq = array(std::vector<float>(2));
    std::vector<float> gradient(300, 1.0F);
    gradient[17] = value;
    const auto grad = array(gradient);
    update({.master = master,
            .grad = grad,
            .param = master,
            .states = {codes, codes_sq},
            .scales = {scales, scales_sq}},
           cut(scalars_of(UpdateRule::adam, true), 300));
    EXPECT_FALSE(std::isfinite(scales.host()[0]));
    EXPECT_TRUE(std::isfinite(scales.host()[1]));
    EXPECT_EQ(codes.host()[17], 127);
    EXPECT_EQ(codes_sq.host()[17], 255);
  }
}

TEST_P(UpdateConformance, WrongArgumentsAreErrorsAtTheCall) {
  const auto fp32 = array(std::vector<float>(4));
  const auto short32 = array(std::vector<float>(3));
  const auto bf16 = array(std::vector<Bf16>(4));
  const auto codes = array(std::vector<uint8_t>(4));
  using Change = std::function<void(UpdateTensors&)>;
  const auto expect_error = [&](const std::vector<UpdateSegment>& segments,
                                const Change& change = nullptr) {
    UpdateTensors tensors = {.master = fp32, .grad = fp32, .param = fp32, .states = {fp32, fp32}};
    if (change) change(tensors);
    EXPECT_THROW(device_->update(*stream_, tensors, segments), InternalError);
  };
  const std::vector<UpdateSegment> all = {{.numel = 4}};
  expect_error(all, [&](UpdateTensors& t) { t.states[0] = short32; });
  expect_error(all, [&](UpdateTensors& t) { t.states[1] = {}; });
  expect_error(all, [&](UpdateTensors& t) { t.states[1] = codes; });  // without scales
  expect_error(all, [&](UpdateTensors& t) { t.param = {fp32.view().data, 4, DType::bf16}; });
  expect_error(all, [&](UpdateTensors& t) { t.master = bf16; });  // and another parameter
  expect_error({{.numel = 4, .scalars = {.rule = UpdateRule::muon_direction}}});  // in place
  expect_error({{.numel = 4, .scalars = {.rule = UpdateRule::lion}}}, [&](UpdateTensors& t) {
    t.states[0] = codes;
    t.scales[0] = fp32.view().slice(0, 1);
  });
  // Segments that do not go together.
  expect_error({{.numel = 5}});
  expect_error({{.begin = -1, .numel = 1}});
  expect_error({{.numel = -1}});
  expect_error({{.begin = 2, .numel = 2}, {.begin = 0, .numel = 2}});
  expect_error({{.numel = 2}, {.begin = 1, .numel = 2}});
  expect_error({{.numel = 4, .element = 1}});
  expect_error({{.numel = 1}, {.begin = 1, .scalars = {.rule = UpdateRule::sgd}}});
  expect_error({{.numel = 1}, {.begin = 1, .scalars = {.step = 2}}});
  expect_error({{.begin = 1, .numel = 3}}, [&](UpdateTensors& t) {  // within a block of 8 bits
    t.states = {codes, codes};
    t.scales = {fp32.view().slice(0, 1), fp32.view().slice(1, 1)};
  });
}

// It goes to where the parameters are, whether there is a step or not.
TEST_P(UpdateConformance, ASkippedStepCastsTheMastersToABufferOfParameters) {
  constexpr int64_t kNumel = 1027;
  const auto skipped = array(std::vector<float>{0.0F, 0.0F});
  for (const auto& [state, dtype, offset] :
       each(kFp32Bf16, std::array{DType::fp32, DType::bf16, DType::fp16}, std::array{0, 1})) {
    const Values before = random_values(kNumel, {.param = dtype, .state = state});
    const auto stored = [&](const std::vector<float>& values, DType as) {
      return Stored(*device_, *stream_, values, as, true, offset);
    };
    const Stored master = stored(before.master, DType::fp32);
    const Stored grad = stored(before.grad, DType::bf16);
    const Stored param = stored(std::vector<float>(kNumel, 77.0F), dtype);
    const Stored state0 = stored(before.states[0], state);
    const Stored state1 = stored(before.states[1], state);
    const std::vector<float> states = state0.values();
    update({.master = master,
            .grad = grad,
            .param = param,
            .states = {state0, state1},
            .decision = skipped,
            .param_is_buffer = true},
           cut(scalars_of(UpdateRule::adam, true), kNumel, {256, 768}));
    EXPECT_EQ(bits_of(param.values()), bits_of(stored(before.master, dtype).values()));
    EXPECT_EQ(bits_of(master.values()), bits_of(before.master));
    EXPECT_EQ(bits_of(state0.values()), bits_of(states));
  }
}

ZR_ON_ALL_DEVICES(UpdateConformance);

}  // namespace
}  // namespace zerorun::testing
