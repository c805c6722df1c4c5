#include "train/run/options.h"

#include "config/keys/key_table.h"
#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/train/run/trainer_fixture.h"
#include "tests/train/token_file.h"
#include "train/run/run_setup.h"

namespace zerorun::train::testing {
namespace {

std::string cli_error_of(const std::vector<std::string>& arguments) {
  return error_of([&] { parse_command_line(arguments); });
}

TEST(OptionsTest, DefaultsNeedNoArguments) {
  const CommandLine line = parse_command_line({});
  EXPECT_FALSE(line.config);
  EXPECT_TRUE(line.options.data.empty());
  EXPECT_EQ(line.options.save, "out/train");
  EXPECT_FALSE(line.options.sample);
}

TEST(OptionsTest, TheHelpIsPlain) {
  const std::string help = parse_command_line({"--help"}).help;
  EXPECT_THAT(help, StartsWith("Trains a GPT-2 model on text, on one or more ranks.\n\nUsage: "
                               "zerorun [LAUNCHER OPTIONS] train [OPTIONS]\n\n"));
  for (const char* type : {" TEXT", " INT", " UINT", " FLOAT", " in [", "\n\n\n"}) {
    EXPECT_THAT(help, Not(HasSubstr(type)));
  }
}

// The help promises it.
TEST(OptionsTest, TheFirstTwoGroupsOfTheHelpAreTheKeysOfTheConfig) {
  const std::string help = parse_command_line({"--help"}).help;
  const size_t begin = help.find("\nJob:");
  std::istringstream lines(help.substr(begin, help.find("\nDevice:") - begin));
  std::set<std::string_view> keys;
  for (const KeySpec* key : key_table().children("/zerorun/train")) keys.insert(key->name());
  std::set<std::string> options;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  --")) options.insert(line.substr(4, line.find(' ', 4) - 4));
  }
  EXPECT_THAT(options, ::testing::ElementsAreArray(keys));
}

TEST(OptionsTest, TheAcceleratorIsChosen) {
  EXPECT_EQ(parse_command_line({}).options.accelerator, Accelerator::automatic);
  EXPECT_EQ(parse_command_line({"--accelerator", "cuda"}).options.accelerator, Accelerator::cuda);
  EXPECT_EQ(parse_command_line({"--accelerator=cpu"}).options.accelerator, Accelerator::cpu);
  EXPECT_THAT(cli_error_of({"--accelerator", "tpu"}),
              HasSubstr("--accelerator: expected one of auto, cpu, cuda, got 'tpu'"));
}

TEST(OptionsTest, DataTakesSeveralPaths) {
  const TrainOptions options =
      parse_command_line({"--data", "a", "b", "--steps", "3", "--data", "c"}).options;
  EXPECT_THAT(options.data, ElementsAre("a", "b", "c"));
  EXPECT_EQ(options.steps, 3);
}

TEST(OptionsTest, EmptyTextsMeanNone) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--save", "", "--sample", "", "--steps", "2"},
        std::vector<std::string>{"--save=", "--sample=", "--steps=2"}}) {
    const TrainOptions options = parse_command_line(arguments).options;
    EXPECT_EQ(options.save, "");
    EXPECT_EQ(options.sample, "");
    EXPECT_EQ(options.steps, 2);
  }
}

TEST(OptionsTest, WordsAreJoinedByEitherSign) {
  EXPECT_EQ(parse_command_line({"--micro-batch=3"}).options.micro_batch, 3);
  EXPECT_EQ(parse_command_line({"--save-every", "5"}).options.save_every, 5);
  EXPECT_EQ(parse_command_line({"--save=a-b"}).options.save, "a-b");
}

TEST(OptionsTest, OtherEmptyTextsAreErrors) {
  for (const char* option :
       {"--data", "--model", "--init", "--resume", "--metrics", "--config", "--logits"}) {
    EXPECT_THAT(cli_error_of({option, ""}),
                HasSubstr(std::string(option) + ": the value is empty"));
  }
}

TEST(OptionsTest, TheLastOfARepeatedOptionCounts) {
  EXPECT_EQ(parse_command_line({"--steps", "3", "--steps", "4"}).options.steps, 4);
}

TEST(OptionsTest, TheCommandLineWinsOverTheConfig) {
  const Scratch folder;
  const std::string config = folder.write("c.json", R"({
    "train_micro_batch_size_per_gpu": 4,
    "zerorun": {"train": {"steps": 7, "seq_len": 32, "data": ["x", "y"], "recompute": true,
                          "sample": "", "model": "mini", "seed": 0}}})");
  const TrainOptions from_file = parse_command_line({"--config", config}).options;
  EXPECT_EQ(from_file.steps, 7);
  EXPECT_EQ(from_file.seq_len, 32);
  EXPECT_THAT(from_file.data, ElementsAre("x", "y"));
  EXPECT_TRUE(from_file.recompute);
  EXPECT_EQ(from_file.sample, "");
  EXPECT_EQ(from_file.model, "mini");
  EXPECT_EQ(from_file.seed, 0U);
  const TrainOptions both =
      parse_command_line({"--steps=9", "--config", config, "--data", "z"}).options;
  EXPECT_EQ(both.steps, 9);
  EXPECT_EQ(both.seq_len, 32);
  EXPECT_THAT(both.data, ElementsAre("z"));
}

TEST(OptionsTest, ATimelineIsAskedForHereOrInTheConfig) {
  const Scratch folder;
  const std::string config = folder.write("config.json", R"({
    "train_batch_size": 4, "optimizer": {"type": "AdamW"},
    "zerorun": {"trace": {"file": "theirs.json", "steps": [3, 5]}}})");
  const TrainOptions theirs = parse_command_line({"--config", config}).options;
  EXPECT_EQ(theirs.trace, "theirs.json");
  EXPECT_THAT(theirs.trace_steps, ElementsAre(3, 5));
  const TrainOptions ours = parse_command_line({"--config", config, "--trace", "ours.json",
                                                "--trace_steps", "7", "7", "--steps", "9"})
                                .options;
  EXPECT_EQ(ours.trace, "ours.json");
  EXPECT_THAT(ours.trace_steps, ElementsAre(7, 7));
  EXPECT_EQ(ours.steps, 9);
  EXPECT_THAT(cli_error_of({"--trace", "t", "--trace_steps", "5", "4"}),
              HasSubstr("--trace_steps: got 5 4, expected the first and the last step"));
  const std::string three = folder.write(
      "three.json", R"({"train_batch_size": 4, "zerorun": {"trace": {"steps": [1, 2, 3]}}})");
  EXPECT_THAT(cli_error_of({"--config", three}),
              HasSubstr("/zerorun/trace/steps: got 3 values, expected at most 2"));
}

TEST(OptionsTest, CheckpointsAreSavedAsTheConfigSaysByAnyOfItsKeys) {
  const Scratch folder;
  for (const char* keys :
       {R"("checkpoint": {"async_save": true})", R"("checkpoint": {"writer": {"decoupled": true}})",
        R"("datastates_ckpt": {"host_cache_size": 1})"}) {
    const std::string config =
        folder.write("config.json", fmt::format(R"({{"train_batch_size": 4, {}}})", keys));
    EXPECT_TRUE(parse_command_line({"--config", config}).options.save_async) << keys;
  }
  const std::string config =
      folder.write("config.json",
                   R"({"train_batch_size": 4, "checkpoint": {"keep_last": 3, "keep_every": 10}})");
  const TrainOptions options = parse_command_line({"--config", config}).options;
  EXPECT_FALSE(options.save_async);
  EXPECT_EQ(options.keep_last, 3);
  EXPECT_EQ(options.keep_every, 10);
}

TEST(OptionsTest, EverySpellingOfTheConfigMeansTheSame) {
  const Scratch folder;
  const std::string config = folder.write("c.json", R"({"train_micro_batch_size_per_gpu": 4})");
  const std::string other = folder.write("d.json", R"({"train_micro_batch_size_per_gpu": 4})");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--config", config},
        std::vector<std::string>{"--deepspeed", config},
        std::vector<std::string>{"--deepspeed", "--deepspeed_config", config},
        std::vector<std::string>{"--deepspeed_config=" + config, "--local_rank=1"},
        std::vector<std::string>{"--local_rank", "1", "--config", config, "--deepspeed", config}}) {
    const CommandLine line = parse_command_line(arguments);
    ASSERT_TRUE(line.config);
    EXPECT_EQ(line.config->config.batch.micro_batch_size, 4);
  }
  EXPECT_THAT(cli_error_of({"--config", config, "--deepspeed", other}),
              HasSubstr("a run has one config, got two"));
  EXPECT_THAT(cli_error_of({"--config", config, "--config", other}), HasSubstr("got two: "));
  EXPECT_THAT(cli_error_of({"--deepspeed", config, "--deepspeed", other}), HasSubstr("got two: "));
  EXPECT_EQ(cli_error_of({"--config", config, "--config", config}), "");
  EXPECT_THAT(cli_error_of({"--deepspeed"}), HasSubstr("--deepspeed FILE"));
}

TEST(OptionsTest, BadValuesNameTheOption) {
  EXPECT_EQ(cli_error_of({"--stepz", "3"}), "unknown option --stepz; did you mean --steps?");
  EXPECT_EQ(cli_error_of({"--micro-bach=3"}),
            "unknown option --micro_bach; did you mean --micro_batch?");
  EXPECT_EQ(cli_error_of({"-resume", "x"}), "unknown option -resume; did you mean --resume?");
  EXPECT_EQ(
      cli_error_of({"--entirely_different"}),
      "unknown option --entirely_different; see train --help; the launcher's options come before "
      "the word train");
  EXPECT_EQ(cli_error_of({"text.txt"}),
            "unexpected argument 'text.txt': it belongs to no option; see train --help");
  for (const char* value : {"nan", "-nan", "inf", "-0.1", "100.5", "warm", "", "1e999"}) {
    EXPECT_THAT(cli_error_of({"--temperature", value}),
                AllOf(HasSubstr("--temperature"), HasSubstr("expected a number from 0 to 100")));
  }
  EXPECT_THAT(cli_error_of({"--steps", "many"}), AllOf(HasSubstr("--steps"), HasSubstr("'many'")));
  EXPECT_THAT(cli_error_of({"--steps", "-1"}), HasSubstr("at least 0"));
  EXPECT_THAT(cli_error_of({"--seq_len", "0"}), HasSubstr("at least 1"));
  EXPECT_THAT(cli_error_of({"--dtype", "fp8"}), HasSubstr("fp8"));
  EXPECT_THAT(cli_error_of({"--config", "/nowhere.json"}), HasSubstr("/nowhere.json"));
  EXPECT_THAT(cli_error_of({"--save_every", "3", "--save="}), HasSubstr("--save DIR"));
  EXPECT_THAT(cli_error_of({"--init", "a", "--resume", "b"}), HasSubstr("--init a"));
  const Scratch folder;
  const std::string config = folder.write("c.json", R"({"zerorun": {"train": {"stepz": 1}}})");
  EXPECT_THAT(cli_error_of({"--config", config}), HasSubstr("/zerorun/train/stepz"));
}

class RunSetupTest : public TrainerTest {
 protected:
  // Of a run on the data, without the small model of the other tests.
  RunSetup setup_of(std::vector<std::string> options, const RankInfo& rank = {}) const {
    options.insert(options.begin(), {"--data", data_});
    return make_run_setup(parse_command_line(options), rank);
  }
  std::string error_of(const std::vector<std::string>& options) const {
    return zerorun::testing::error_of([&] { setup_of(options); });
  }
};

TEST_F(RunSetupTest, ContradictionsAreNamed) {
  EXPECT_EQ(error_of({}), "");
  EXPECT_THAT(error_of({"--seq_len", "300"}), HasSubstr("256 positions"));
  EXPECT_THAT(error_of({"--model", "huge"}), HasSubstr("'huge'"));
  const std::string small = folder_.write(
      "small.json",
      R"({"vocab_size": 100, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16})");
  EXPECT_THAT(error_of({"--model", small}), HasSubstr("vocabulary of 100"));
  EXPECT_THAT(error_of({"--sample", "", "--logits", "l"}),
              HasSubstr("--logits l: it needs the logits of a prompt, but --sample is empty"));
  EXPECT_THAT(error_of({"--trace", "t", "--trace_steps", "5", "6", "--steps", "4"}),
              HasSubstr("--trace_steps 5 6: the run ends after step 4"));
  const std::string tokens = folder_.write("t.bin", token_file(9, std::vector<uint16_t>(600, 1)));
  data_ = tokens;
  EXPECT_EQ(error_of({"--sample", "1, 8 0"}), "");
  EXPECT_THAT(error_of({"--sample", "1 9"}), HasSubstr("'9'"));
  EXPECT_THAT(error_of({"--sample", "hello"}), HasSubstr("'hello'"));
}

TEST_F(RunSetupTest, WithoutAConfigTheRateFallsToZeroByTheLastStep) {
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
        error_of({"--micro_batch", micro_batch}),
        AllOf(HasSubstr(std::string("--micro_batch ") + micro_batch + " with --seq_len 128"),
              ContainsRegex(" [PE]iB for the activations"), HasSubstr("or --recompute")));
  }
  EXPECT_THAT(error_of({"--micro_batch", "9223372036854775807"}), HasSubstr("micro_batch"));
}

TEST_F(RunSetupTest, TheDataDecideTheVocabulary) {
  EXPECT_EQ(setup_of({}).model.vocabulary, 256);
  data_ = folder_.write("t.bin", token_file(999, std::vector<uint16_t>(600, 1)));
  EXPECT_EQ(setup_of({}).model.vocabulary, 999);
}

TEST_F(RunSetupTest, WithoutConfigItIsStage2InBf16WithClipping) {
  const RunSetup setup = setup_of({}, {.world_size = 2});
  EXPECT_EQ(setup.config.zero.stage, 2);
  EXPECT_EQ(setup.config.precision.param_dtype, DType::bf16);
  EXPECT_EQ(setup.config.gradient_clipping, 1.0);
  EXPECT_EQ(setup.batch.global_batch(), 8);
}

TEST_F(RunSetupTest, TheConfigDecidesWhatTheCommandLineLeavesOpen) {
  const auto sizes_of = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"--config", config(1)});
    const RunSetup setup = setup_of(options, {.world_size = 2});
    return std::pair(setup.batch.micro_batch, setup.config.precision.param_dtype);
  };
  EXPECT_EQ(sizes_of({}), std::pair(int64_t{2}, DType::fp32));
  EXPECT_EQ(sizes_of({"--micro_batch", "3", "--dtype", "bf16"}),
            std::pair(int64_t{3}, DType::bf16));
  const std::string file = folder_.write("bf16.json", R"({"bf16": {"enabled": true}})");
  const PrecisionConfig fp16 = setup_of({"--config", file, "--dtype", "fp16"}).config.precision;
  EXPECT_EQ(fp16.param_dtype, DType::fp16);
  EXPECT_EQ(fp16.loss_scaler.initial_scale_power, 16);
}

}  // namespace
}  // namespace zerorun::train::testing
