// Stages 1 and 2 with zero_quantized_weights, against the mathematics of one process: what a step
// has updated crosses hosts in 8 bits.

#include "tests/zero/toy_run.h"

namespace zerorun::testing::quantized_update {
namespace {

constexpr ParameterId kMatrix = 0;
constexpr ParameterId kBias = 1;
constexpr ParameterId kFrozen = 2;
constexpr ParameterId kSmall = 3;  // in the matrix's bucket; neither fills its last block
constexpr int64_t kSteps = 3;

const std::vector<ParameterSpec>& specs() {
  static const std::vector<ParameterSpec> specs = {{"matrix", {16, 500}, "m", 0, true, ""},
                                                   {"bias", {500}, "m", 0, true, ""},
                                                   {"frozen", {8, 500}, "m", 0, false, ""},
                                                   {"small", {3, 100}, "m", 0, true, ""}};
  return specs;
}

// Before the first step, and after each.
struct Look {
  std::map<ParameterId, std::vector<float>> masters;            // of all owners
  std::map<ParameterId, std::vector<std::vector<float>>> full;  // by rank
};

void look_at(Engine& engine, const Communicator& comm, Look& look) {
  for (const StateInterval& interval : engine.states().state_intervals()) {
    if (!interval.owned || interval.parameter == kFrozen) continue;
    std::vector<float>& masters = look.masters[interval.parameter];
    masters.resize(static_cast<size_t>(engine.numel(interval.parameter)));
    std::ranges::copy(ToyModel::floats_of(interval.master), masters.begin() + interval.begin);
  }
  for (const ParameterId id : {kMatrix, kBias, kFrozen, kSmall}) {
    auto& full = look.full[id];
    full.resize(static_cast<size_t>(comm.world_size()));
    full[static_cast<size_t>(comm.rank())] = ToyModel::floats_of(engine.parameter(id));
  }
}

void take_step(Engine& engine, const Communicator& comm, int64_t step) {
  write_gradients(engine, [&](ParameterId id, int64_t i) {
    return ToyModel::noise(id, i, comm.rank(), 0, step);
  });
  engine.end_micro_step();
  EXPECT_TRUE(engine.step().applied);
}

// What a rank says it computes with in place of its part is what the full parameter has there.
void expect_decoded_parts(Engine& engine) {
  std::map<ParameterId, int64_t> ends;
  for (const StateInterval& interval : engine.states().state_intervals()) {
    const Buffer memory = engine.hooks().decoded_part(interval.parameter);
    if (!memory) continue;
    const int64_t begin = ends[interval.parameter];
    ends[interval.parameter] += interval.numel;
    const TensorView part = view_of(memory, engine.param_dtype(), begin + interval.numel);
    const TensorView full = engine.parameter(interval.parameter);
    EXPECT_EQ(ToyModel::floats_of(part.slice(begin, interval.numel)),
              ToyModel::floats_of(full.slice(interval.begin, interval.numel)));
  }
}

// Gradients do not depend on parameters, so that masters can be compared.
std::vector<Look> train(const Config& config, int ranks) {
  std::vector<Look> looks(kSteps + 1);
  std::mutex mutex;
  run_engines({config, ranks, hosts_of(2), specs()}, [&](Engine& engine, Communicator& comm) {
    for (int64_t step = 0; step <= kSteps; ++step) {
      if (step > 0) take_step(engine, comm, step);
      const std::lock_guard lock(mutex);
      look_at(engine, comm, looks[static_cast<size_t>(step)]);
      expect_decoded_parts(engine);
    }
    engine.states().parameter_hash();  // throws when replicas differ
  });
  return looks;
}

// decode(encode(master)), in the parameter's dtype.
std::vector<float> decoded(std::vector<float> master, DType dtype) {
  const size_t numel = master.size();
  master.resize((numel + kQuantizedBlock - 1) / kQuantizedBlock * kQuantizedBlock);
  const auto device = make_cpu_device();
  Stream& stream = device->inline_stream();
  const auto padded = static_cast<int64_t>(master.size());
  const Buffer memory = device->allocate(master.size() * size_of(dtype), MemoryCategory::other);
  const TensorView param = view_of(memory, dtype, padded);
  std::vector<uint8_t> bytes(static_cast<size_t>(quantized_nbytes(padded, 8)));
  device->cast(stream, view_of(std::span(master)), param);
  device->quantize(stream, param, view_of(std::span(bytes)), {.bits = 8});
  device->dequantize(stream, view_of(std::span(bytes)), param, {.bits = 8});
  return ToyModel::floats_of(param.slice(0, static_cast<int64_t>(numel)));
}

std::vector<float> cast(std::vector<float> values, DType dtype) {
  for (float& value : values) {
    if (dtype == DType::bf16) value = to_float(to_bf16(value));
  }
  return values;
}

void expect_decoded(Config config, int ranks, const std::string& what) {
  const DType dtype = config.precision.param_dtype;
  const std::vector<Look> plain = train(config, ranks);
  config.zero.quantized_weights = true;
  const std::vector<Look> looks = train(config, ranks);
  for (size_t step = 0; step < looks.size(); ++step) {
    const Look& look = looks[step];
    EXPECT_EQ(look.masters, plain[step].masters) << what << ", step " << step;
    for (const ParameterId id : {kMatrix, kSmall}) {
      const std::vector<float> expected = decoded(look.masters.at(id), dtype);
      EXPECT_NE(expected, cast(look.masters.at(id), dtype));
      for (const std::vector<float>& full : look.full.at(id)) {
        EXPECT_EQ(full, expected) << what << ", step " << step;
      }
    }
    for (const std::vector<float>& full : look.full.at(kBias)) {
      EXPECT_EQ(full, cast(look.masters.at(kBias), dtype)) << what << ", step " << step;
    }
    EXPECT_EQ(look.full.at(kFrozen), plain[step].full.at(kFrozen)) << what;
  }
}

Config config_of(int stage, DType dtype = DType::bf16) {
  Config config = toy_config(stage, dtype);
  config.zero.reduce_bucket_size = 10'000;
  return config;
}

TEST(QuantizedUpdateTest, AllRanksComputeWithTheDecodedMasters) {
  for (const auto& [stage, dtype] : each(std::array{1, 2}, kFp32Bf16)) {
    Config config = config_of(stage, dtype);
    const std::string what = fmt::format("stage {} in {}", stage, name_of(dtype));
    config.zero.overlap_comm = false;
    expect_decoded(config, 4, what);
    config.zero.overlap_comm = true;
    expect_decoded(config, 4, what + ", overlapped");
    config.zero.shard_group_size = 4;  // of two hosts each
    expect_decoded(config, 8, what + ", in shard groups");
  }
}

TEST(QuantizedUpdateTest, MastersMayBeOffloadedOrTheParameters) {
  for (const int stage : {1, 2}) {
    Config config = config_of(stage);
    config.precision.master_is_param = true;
    expect_decoded(config, 4, "without fp32 masters");
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      config = config_of(stage, dtype);
      config.offload.optimizer.device = OffloadDevice::cpu;
      config.offload.optimizer.ratio = 0.5;
      expect_decoded(config, 4, "half of the states offloaded");
    }
    config.optimizer.type = "Muon";
    expect_decoded(config, 4, "Muon");
  }
}

}  // namespace
}  // namespace zerorun::testing::quantized_update
