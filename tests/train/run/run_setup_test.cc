#include "train/run/run_setup.h"

#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/train/run/trainer_fixture.h"

namespace zerorun::train::testing {
namespace {

class RunSetupTest : public TrainerTest {
 protected:
  std::string error_of(const std::vector<std::string>& options) const {
    return zerorun::testing::error_of([&] { make_run_setup(parse_command_line(options), {}); });
  }
};

TEST_F(RunSetupTest, ContradictionsAreNamed) {
  EXPECT_EQ(error_of({"--data", data_}), "");
  EXPECT_THAT(error_of({"--data", data_, "--seq_len", "300"}), HasSubstr("256 positions"));
  EXPECT_THAT(error_of({"--data", data_, "--model", "huge"}), HasSubstr("'huge'"));
  const std::string small = folder_.write(
      "small.json",
      R"({"vocab_size": 100, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16})");
  EXPECT_THAT(error_of({"--data", data_, "--model", small}), HasSubstr("vocabulary of 100"));
  const std::string tokens = folder_.write("t.bin", token_file(9, std::vector<uint16_t>(600, 1)));
  EXPECT_EQ(error_of({"--data", tokens, "--sample", "1, 8 0"}), "");
  EXPECT_THAT(error_of({"--data", tokens, "--sample", "1 9"}), HasSubstr("'9'"));
  EXPECT_THAT(error_of({"--data", tokens, "--sample", "hello"}), HasSubstr("'hello'"));
  EXPECT_THAT(error_of({"--data", data_, "--sample", "", "--logits", "l"}),
              HasSubstr("--logits l: it needs the logits of a prompt, but --sample is empty"));
  EXPECT_THAT(
      error_of({"--data", data_, "--trace", "t", "--trace_steps", "5", "6", "--steps", "4"}),
      HasSubstr("--trace_steps 5 6: the run ends after step 4"));
}

TEST_F(RunSetupTest, WithoutAConfigTheRateFallsToZeroByTheLastStep) {
  const auto setup_of = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"--data", data_});
    return make_run_setup(parse_command_line(options), {});
  };
  const RunSetup setup = setup_of({});
  EXPECT_EQ(setup.options.steps, 700);
  EXPECT_EQ(setup.batch.seq_len, 128);
  EXPECT_EQ(setup.batch.micro_batch, 4);
  EXPECT_EQ(setup.config.optimizer.type, "Muon");
  for (const int64_t steps : {0, 1, 5, 1000}) {
    const RunSetup shorter = setup_of({"--steps", std::to_string(steps)});
    EXPECT_EQ(shorter.options.steps, steps);
    const std::vector<double> lrs = {shorter.config.optimizer.lr};
    const auto schedule = make_lr_schedule(shorter.config.scheduler, lrs);
    EXPECT_GT(schedule->values(steps / 2, 0).lr, 0.0) << steps;
    EXPECT_NEAR(schedule->values(std::max<int64_t>(1, steps), 0).lr, 0.0, 1e-12) << steps;
  }
  const std::string file = folder_.write("batch.json", R"({"train_micro_batch_size_per_gpu": 2})");
  const RunSetup with_config = setup_of({"--config", file});
  EXPECT_EQ(with_config.options.steps, 400);
  EXPECT_EQ(with_config.batch.seq_len, 256);
  EXPECT_EQ(with_config.config.optimizer.type, "AdamW");
}

TEST_F(RunSetupTest, ActivationsThatNoMachineHoldsAreRefused) {
  for (const char* micro_batch : {"1000000000", "1000000000000000000"}) {
    EXPECT_THAT(
        error_of({"--data", data_, "--micro_batch", micro_batch}),
        AllOf(HasSubstr(std::string("--micro_batch ") + micro_batch + " with --seq_len 128"),
              ContainsRegex(" [PE]iB for the activations"), HasSubstr("or --recompute")));
  }
  EXPECT_THAT(error_of({"--data", data_, "--micro_batch", "9223372036854775807"}),
              HasSubstr("micro_batch"));
}

TEST_F(RunSetupTest, TheDataDecideTheVocabulary) {
  const std::string tokens = folder_.write("t.bin", token_file(999, std::vector<uint16_t>(600, 1)));
  EXPECT_EQ(make_run_setup(parse_command_line({"--data", tokens}), {}).model.vocabulary, 999);
  EXPECT_EQ(make_run_setup(parse_command_line({"--data", data_}), {}).model.vocabulary, 256);
}

TEST_F(RunSetupTest, WithoutConfigItIsStage2InBf16WithClipping) {
  const RunSetup setup = make_run_setup(parse_command_line({"--data", data_}), {.world_size = 2});
  EXPECT_EQ(setup.config.zero.stage, 2);
  EXPECT_EQ(setup.config.precision.param_dtype, DType::bf16);
  EXPECT_EQ(setup.config.gradient_clipping, 1.0);
  EXPECT_EQ(setup.config.optimizer.type, "Muon");
  EXPECT_EQ(setup.batch.global_batch(), 8);
}

TEST_F(RunSetupTest, TheConfigDecidesWhatTheCommandLineLeavesOpen) {
  const RunSetup setup = make_run_setup(
      parse_command_line({"--data", data_, "--config", config(1)}), {.world_size = 2});
  EXPECT_EQ(setup.batch.micro_batch, 2);
  EXPECT_EQ(setup.config.precision.param_dtype, DType::fp32);
  const RunSetup overridden =
      make_run_setup(parse_command_line({"--data", data_, "--config", config(1), "--micro_batch",
                                         "3", "--dtype", "bf16"}),
                     {.world_size = 2});
  EXPECT_EQ(overridden.batch.micro_batch, 3);
  EXPECT_EQ(overridden.config.precision.param_dtype, DType::bf16);
}

TEST_F(RunSetupTest, TheCommandLineDecidesOnTheDtype) {
  const std::string file = folder_.write("bf16.json", R"({"bf16": {"enabled": true}})");
  const RunSetup setup = make_run_setup(
      parse_command_line({"--data", data_, "--config", file, "--dtype", "fp16"}), {});
  EXPECT_EQ(setup.config.precision.param_dtype, DType::fp16);
  EXPECT_EQ(setup.config.precision.loss_scaler.initial_scale_power, 16);
}

}  // namespace
}  // namespace zerorun::train::testing
