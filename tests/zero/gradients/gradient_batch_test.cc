// Rounds of gradients, and contributions that come several times or late.
#include "zero/gradients/gradient_batch.h"

#include "device/cpu/cpu_device.h"
#include "tests/zero/toy_run.h"
#include "zerorun/exact_sum.h"
#include "zerorun/out_of_memory.h"

namespace zerorun::testing::gradient_batch {
namespace {

int64_t reductions(const CommStats& stats, int stage) {
  return stats[stage == 0 ? Collective::all_reduce : Collective::reduce_scatter].calls;
}

using Batch = std::function<void(Engine&, Communicator&, int64_t step)>;

// Three steps on two ranks; `batch` ends with end_micro_step.
ToyOutcome train(const Config& config, const Batch& batch) {
  return train_by({config}, 3, [&](Engine& engine, Communicator& comm, int64_t step) {
    batch(engine, comm, step);
    return engine.step();
  });
}

// One contribution of each parameter.
void backward(Engine& engine, int rank, int64_t step, int64_t part) {
  for (const ParameterId id : trainable(engine)) contribute(engine, id, rank, part, step);
}

// The first parts of a gradient in one contribution.
void contribute_sum(Engine& engine, ParameterId id, int rank, int64_t step, int64_t parts) {
  std::vector<float> sum(static_cast<size_t>(engine.numel(id)));
  for (int64_t part = 0; part < parts; ++part) {
    const std::vector<float> more = gradient_of(engine, id, rank, part, step);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }
  engine.contribute(id, view_of(std::span<float>(sum)));
}

class GradientBatchTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, GradientBatchTest, ::testing::Range(0, 4));

// Sums of the toy's gradients are exact, so the split of a gradient shows in no bit.
TEST_P(GradientBatchTest, LateContributionsCountAtThePriceOfOneRound) {
  Config config = base_config(GetParam(), DType::fp32);
  const auto at_once = [](Engine& engine, Communicator& comm, int64_t step) {
    for (const ParameterId id : trainable(engine)) {
      contribute_sum(engine, id, comm.rank(), step, step == 1 && comm.rank() == 1 ? 3 : 1);
    }
    EXPECT_TRUE(engine.end_micro_step());
  };
  for (const int64_t accumulation : {1, 2}) {
    config.batch.accumulation_steps = accumulation;
    const auto late = [&](Engine& engine, Communicator& comm, int64_t step) {
      backward(engine, comm.rank(), step, 0);
      if (step == 1 && comm.rank() == 1) {
        for (const int64_t part : {1, 2}) backward(engine, comm.rank(), step, part);
      }
      EXPECT_TRUE(engine.end_micro_step());
    };
    const auto padded = [&](const Batch& batch) -> Batch {
      return [&, batch](Engine& engine, Communicator& comm, int64_t step) {
        for (int64_t i = 1; i < accumulation; ++i) EXPECT_FALSE(engine.end_micro_step());
        batch(engine, comm, step);
      };
    };
    EXPECT_EQ(train(config, padded(late)), train(config, padded(at_once)))
        << "accumulation " << accumulation;
  }
}

// Has no memory for one allocation of a bucket.
struct FullDevice final : CpuDevice {
  FullDevice() : CpuDevice({}) {}
  Buffer allocate(size_t nbytes, MemoryCategory category) override {
    if (category == MemoryCategory::buckets && refuse_in-- == 0) throw OutOfMemory("none left");
    return CpuDevice::allocate(nbytes, category);
  }
  int refuse_in = -1;  // after so many others
};

TEST_P(GradientBatchTest, ABackwardWithoutMemoryCanBeRepeated) {
  const auto hash_of_a_step = [](int refuse_in) {
    const auto connect = [](CommunicatorOptions& options) {
      options.device = std::make_shared<FullDevice>();
      return make_communicator(options);
    };
    const ToyJob job{
        .config = base_config(GetParam(), DType::fp32), .ranks = 1, .connect = connect};
    return hash_after(job, [&](Engine& engine, Communicator&) {
      backward(engine, 0, 0, 0);
      engine.reduce_gradients();
      dynamic_cast<FullDevice&>(engine.device()).refuse_in = refuse_in;
      try {
        backward(engine, 0, 0, 1);
      } catch (const OutOfMemory&) {
        EXPECT_GE(refuse_in, 0);
        backward(engine, 0, 0, 1);
      }
      EXPECT_TRUE(engine.end_micro_step());
      engine.step();
    });
  };
  const uint64_t expected = hash_of_a_step(-1);
  // From stage 2 on a bucket gets memory with its first gradient, so only the first may be refused.
  const int allocations = GetParam() < 2 ? 3 : 1;
  for (int i = 0; i < allocations; ++i) EXPECT_EQ(hash_of_a_step(i), expected) << i;
}

// What reads gradients before the step (clipping) has to see late ones.
TEST_P(GradientBatchTest, LateContributionsCanBeReducedBeforeTheStep) {
  using Seen = std::pair<double, std::vector<std::vector<float>>>;  // norm, and reduced gradients
  // The first step of an engine, in which one contribution of each parameter is expected.
  const auto first_step = [](const std::vector<int>& ranks, bool late) {
    std::array<Seen, 2> all;  // by rank
    run_engines({base_config(GetParam(), DType::fp32)}, [&](Engine& engine, Communicator& comm) {
      const bool adds = std::find(ranks.begin(), ranks.end(), comm.rank()) != ranks.end();
      for (const ParameterId id : trainable(engine)) {
        contribute_sum(engine, id, comm.rank(), 0, adds && !late ? 2 : 1);
      }
      if (adds && late) backward(engine, comm.rank(), 0, 1);
      engine.reduce_gradients();
      engine.hooks().reduce_late_gradients();
      const auto calls = [&] {
        return reductions(comm.stats(), GetParam()) + comm.stats()[Collective::all_reduce].calls;
      };
      const int64_t before = calls();
      engine.hooks().reduce_late_gradients();  // nothing has come since
      EXPECT_TRUE(engine.end_micro_step());
      EXPECT_EQ(calls(), before);
      Seen& seen = all.at(static_cast<size_t>(comm.rank()));
      for (const StateInterval& part : engine.states().state_intervals()) {
        if (part.grad.empty()) continue;
        const float* values = part.grad.as<const float>();
        seen.second.emplace_back(values, values + part.grad.numel);
      }
      seen.first = engine.step().grad_norm;
    });
    return all;
  };
  for (const std::vector<int>& ranks : {std::vector<int>{0}, {1}, {0, 1}}) {
    EXPECT_EQ(first_step(ranks, true), first_step(ranks, false)) << ranks.size() << " are late";
  }
}

TEST_P(GradientBatchTest, OneCollectiveDecidesUnlessGradientsWereLate) {
  run_engines({base_config(GetParam(), DType::fp32)}, [](Engine& engine, Communicator& comm) {
    const auto step_stats = [&](int64_t step, bool late) {
      backward(engine, comm.rank(), step, 0);
      if (late && comm.rank() == 0) contribute(engine, trainable(engine)[0], 0, 1, step);
      engine.end_micro_step();
      const CommStats before = comm.stats();
      engine.step();
      return since(before, comm);
    };
    step_stats(0, false);
    const CommStats ordinary = step_stats(1, false);
    EXPECT_EQ(ordinary[Collective::all_reduce].calls, 1);
    EXPECT_LE(ordinary[Collective::all_reduce].elements, ExactSum::kWords + 8);
    EXPECT_EQ(ordinary[Collective::broadcast].calls, 0);
    const CommStats late = step_stats(2, true);
    EXPECT_GT(reductions(late, GetParam()), reductions(ordinary, GetParam()));
    const CommStats again = step_stats(3, false);
    EXPECT_EQ(again[Collective::all_reduce].calls, 1);
  });
}

// As stage 2 has it, where reduced gradients have memory of their own.
TEST_P(GradientBatchTest, RoundsOfOneMicroStepAddUpToTheSameBits) {
  const auto rounds = [](int count) -> Batch {
    return [count](Engine& engine, Communicator& comm, int64_t step) {
      for (int64_t round = 0; round < count; ++round) {
        backward(engine, comm.rank(), step, round);
        engine.reduce_gradients();
        EXPECT_EQ(engine.batch().phase, BatchPhase::reduced);
      }
      EXPECT_TRUE(engine.end_micro_step());
    };
  };
  for (const auto& [dtype, count] : each(kFp32Bf16, std::array{1, 2, 3})) {
    const ToyOutcome expected = train(base_config(2, dtype), rounds(count));
    const Config config = base_config(GetParam(), dtype);
    EXPECT_EQ(train(config, rounds(count)), expected) << count << " rounds";
    if (GetParam() == 0) continue;  // no offload
    for (const double ratio : {0.5, 1.0}) {
      EXPECT_EQ(train(offloaded(config, ratio), rounds(count)),
                train(offloaded(base_config(2, dtype), ratio), rounds(count)))
          << count << " rounds, offload " << ratio;
    }
  }
}

TEST_P(GradientBatchTest, ABatchThatIsNotSteppedGoesOn) {
  const auto twice = [](Engine& engine, Communicator& comm, int64_t step) {
    for (int64_t part = 0; part < 2; ++part) {
      backward(engine, comm.rank(), step, part);
      EXPECT_TRUE(engine.end_micro_step());
    }
  };
  const auto once = [](Engine& engine, Communicator& comm, int64_t step) {
    for (const ParameterId id : trainable(engine)) contribute_sum(engine, id, comm.rank(), step, 2);
    EXPECT_TRUE(engine.end_micro_step());
  };
  const Config config = base_config(GetParam(), DType::fp32);
  const ToyOutcome expected = train(config, once);
  EXPECT_EQ(train(config, twice), expected);
  if (GetParam() > 0) {  // no offload at stage 0
    EXPECT_EQ(train(offloaded(config, 0.5), twice), expected);
  }
}

TEST_P(GradientBatchTest, AStepWithoutAGradientChangesNothing) {
  run_engines({base_config(GetParam(), DType::fp32)}, [](Engine& engine, Communicator& comm) {
    const uint64_t before = engine.states().parameter_hash();
    EXPECT_TRUE(engine.end_micro_step());
    const StepResult result = engine.step();
    EXPECT_FALSE(result.applied || result.had_gradient);
    EXPECT_EQ(engine.states().parameter_hash(), before);
    EXPECT_EQ(engine.states().progress().step_count, 0);
    EXPECT_EQ(engine.states().progress().skipped_steps, 0);
    if (comm.rank() == 1) backward(engine, 1, 0, 0);  // one rank's is enough
    EXPECT_TRUE(engine.end_micro_step());
    EXPECT_TRUE(engine.step().applied);
    EXPECT_NE(engine.states().parameter_hash(), before);
  });
}

// One contribution of each parameter in each micro-step.
void plain_batch(Engine& engine, Communicator& comm, int64_t step) {
  for (int64_t micro = 0; micro < engine.batch().rule.accumulation_steps; ++micro) {
    backward(engine, comm.rank(), step, micro);
    engine.end_micro_step();
  }
}

TEST_P(GradientBatchTest, ABoundaryThatIsSetAfterTheReductionCounts) {
  const auto late_boundary = [](Engine& engine, Communicator& comm, int64_t step) {
    engine.set_batch_rule({.boundary = false});
    backward(engine, comm.rank(), step, 0);
    engine.reduce_gradients();
    EXPECT_FALSE(engine.batch().last);
    engine.set_batch_rule({.boundary = true});
    EXPECT_TRUE(engine.end_micro_step());
  };
  const Config config = base_config(GetParam(), DType::fp32);
  EXPECT_EQ(train(config, late_boundary), train(config, plain_batch));
}

// Whatever was accumulated before and wherever it is stored.
TEST_P(GradientBatchTest, ADroppedBatchLeavesNothing) {
  const auto dropped = [](Engine& engine, Communicator& comm, int64_t step) {
    plain_batch(engine, comm, step + 5);
    backward(engine, comm.rank(), step, 7);
    backward(engine, comm.rank(), step, 8);  // late
    engine.drop_batch();
    EXPECT_EQ(engine.batch().phase, BatchPhase::idle);
    plain_batch(engine, comm, step);
  };
  for (const int64_t accumulation : {1, 3}) {
    const Config config = base_config(GetParam(), DType::fp32, accumulation);
    const ToyOutcome expected = train(config, plain_batch);
    EXPECT_EQ(train(config, dropped), expected) << accumulation << " micro-steps";
    if (GetParam() == 0) continue;  // no offload
    EXPECT_EQ(train(offloaded(config, 0.5), dropped), expected) << accumulation << " micro-steps";
  }
}

}  // namespace
}  // namespace zerorun::testing::gradient_batch
