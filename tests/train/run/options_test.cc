#include "train/run/options.h"

#include "config/keys/key_table.h"
#include "tests/train/run/trainer_fixture.h"

namespace zerorun::train::testing {
namespace {

std::string cli_error_of(const std::vector<std::string>& arguments) {
  return error_of([&] { parse_command_line(arguments); });
}

TrainOptions options_of(const std::vector<std::string>& arguments) {
  return parse_command_line(arguments).options;
}

// The help promises that they are.
TEST(OptionsTest, TheFirstTwoGroupsOfTheHelpAreTheKeysOfTheConfig) {
  const std::string help = parse_command_line({"--help"}).help;
  EXPECT_THAT(help, StartsWith("Trains a GPT-2 model on text, on one or more ranks.\n\nUsage: "
                               "zerorun [LAUNCHER OPTIONS] train [OPTIONS]\n\n"));
  for (const char* type : {" TEXT", " INT", " UINT", " FLOAT", " in [", "\n\n\n"}) {
    EXPECT_THAT(help, Not(HasSubstr(type)));
  }
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

TEST(OptionsTest, TheLastOfARepeatedOptionCountsAndPathsAreJoined) {
  EXPECT_FALSE(parse_command_line({}).config);
  const TrainOptions none = options_of({});
  EXPECT_EQ(none.save, "out/train");
  EXPECT_FALSE(none.sample);
  EXPECT_EQ(none.accelerator, Accelerator::automatic);
  const TrainOptions given =
      options_of({"--data", "a", "b", "--steps", "3", "--data", "c", "--micro-batch=3",
                  "--save-every", "5", "--steps", "4", "--save=a-b", "--accelerator", "cuda"});
  EXPECT_THAT(given.data, ElementsAre("a", "b", "c"));
  EXPECT_EQ(given.steps, 4);
  EXPECT_EQ(given.micro_batch, 3);
  EXPECT_EQ(given.save_every, 5);
  EXPECT_EQ(given.save, "a-b");
  EXPECT_EQ(given.accelerator, Accelerator::cuda);
}

TEST(OptionsTest, EmptyTextsMeanNone) {
  for (const TrainOptions& options :
       {options_of({"--save", "", "--sample", "", "--steps", "2", "--accelerator=cpu"}),
        options_of({"--save=", "--sample=", "--steps=2", "--accelerator=cpu"})}) {
    EXPECT_EQ(options.save, "");
    EXPECT_EQ(options.sample, "");
    EXPECT_EQ(options.steps, 2);
    EXPECT_EQ(options.accelerator, Accelerator::cpu);
  }
  for (const char* option :
       {"--data", "--model", "--init", "--resume", "--metrics", "--config", "--logits"}) {
    EXPECT_THAT(cli_error_of({option, ""}),
                HasSubstr(std::string(option) + ": the value is empty"));
  }
}

TEST(OptionsTest, TheCommandLineWinsOverTheConfig) {
  const Scratch folder;
  const std::string config = folder.write("c.json", R"({
    "train_micro_batch_size_per_gpu": 4, "checkpoint": {"async_save": true, "keep_last": 3, "keep_every": 10},
    "zerorun": {"trace": {"file": "theirs.json", "steps": [3, 5]},
                "train": {"steps": 7, "seq_len": 32, "data": ["x", "y"], "recompute": true,
                          "sample": "", "model": "mini", "seed": 0}}})");
  const TrainOptions from_file = options_of({"--config", config});
  EXPECT_EQ(from_file.steps, 7);
  EXPECT_EQ(from_file.seq_len, 32);
  EXPECT_THAT(from_file.data, ElementsAre("x", "y"));
  EXPECT_TRUE(from_file.recompute);
  EXPECT_EQ(from_file.sample, "");
  EXPECT_EQ(from_file.model, "mini");
  EXPECT_EQ(from_file.seed, 0U);
  EXPECT_EQ(from_file.trace, "theirs.json");
  EXPECT_THAT(from_file.trace_steps, ElementsAre(3, 5));
  EXPECT_TRUE(from_file.save_async);
  EXPECT_EQ(from_file.keep_last, 3);
  EXPECT_EQ(from_file.keep_every, 10);
  const TrainOptions both = options_of({"--steps=9", "--config", config, "--data", "z", "--trace",
                                        "ours.json", "--trace_steps", "7", "7"});
  EXPECT_EQ(both.steps, 9);
  EXPECT_EQ(both.seq_len, 32);
  EXPECT_THAT(both.data, ElementsAre("z"));
  EXPECT_EQ(both.trace, "ours.json");
  EXPECT_THAT(both.trace_steps, ElementsAre(7, 7));
}

TEST(OptionsTest, EverySpellingOfTheConfigMeansTheSame) {
  const Scratch folder;
  const std::string config = folder.write("c.json", R"({"train_micro_batch_size_per_gpu": 4})");
  const std::string other = folder.write("d.json", R"({"train_micro_batch_size_per_gpu": 4})");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--deepspeed", config},
        {"--deepspeed", "--deepspeed_config", config},
        {"--deepspeed_config=" + config, "--local_rank=1"},
        {"--local_rank", "1", "--config", config, "--config", config, "--deepspeed", config}}) {
    const CommandLine line = parse_command_line(arguments);
    ASSERT_TRUE(line.config);
    EXPECT_EQ(line.config->config.batch.micro_batch_size, 4);
  }
  for (const char* first : {"--config", "--deepspeed"}) {
    EXPECT_THAT(cli_error_of({first, config, "--deepspeed", other}),
                HasSubstr("a run has one config, got two: "));
  }
  EXPECT_THAT(cli_error_of({"--config", config, "--config", other}), HasSubstr("got two: "));
}

TEST(OptionsTest, ErrorsNameTheOption) {
  const Scratch folder;
  const std::string typo = folder.write("c.json", R"({"zerorun": {"train": {"stepz": 1}}})");
  const std::string three = folder.write(
      "three.json", R"({"train_batch_size": 4, "zerorun": {"trace": {"steps": [1, 2, 3]}}})");
  for (const auto& [arguments, message] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--stepz", "3"}, "unknown option --stepz; did you mean --steps?"},
           {{"--micro-bach=3"}, "unknown option --micro_bach; did you mean --micro_batch?"},
           {{"-resume", "x"}, "unknown option -resume; did you mean --resume?"},
           {{"--entirely_different"}, "see train --help; the launcher's options come before"},
           {{"text.txt"}, "unexpected argument 'text.txt': it belongs to no option; see train"},
           {{"--accelerator", "tpu"}, "--accelerator: expected one of auto, cpu, cuda, got 'tpu'"},
           {{"--steps", "many"}, "'many'"},
           {{"--steps", "-1"}, "at least 0"},
           {{"--seq_len", "0"}, "at least 1"},
           {{"--dtype", "fp8"}, "fp8"},
           {{"--config", "/nowhere.json"}, "/nowhere.json"},
           {{"--config", typo}, "/zerorun/train/stepz"},
           {{"--config", three}, "/zerorun/trace/steps: got 3 values, expected at most 2"},
           {{"--deepspeed"}, "--deepspeed FILE"},
           {{"--save_every", "3", "--save="}, "--save DIR"},
           {{"--init", "a", "--resume", "b"}, "--init a"},
           {{"--trace", "t", "--trace_steps", "5", "4"},
            "--trace_steps: got 5 4, expected the first and the last step"}}) {
    EXPECT_THAT(cli_error_of(arguments), HasSubstr(message));
  }
  for (const char* value : {"nan", "-nan", "inf", "-0.1", "100.5", "warm", "", "1e999"}) {
    EXPECT_THAT(cli_error_of({"--temperature", value}),
                HasSubstr("--temperature: expected a number from 0 to 100"));
  }
}

struct RunSetupTest : TrainerTest {
  // Of a run on the data, without the small model of the other tests.
  RunSetup setup_of(std::vector<std::string> options, const RankInfo& rank = {}) const {
    options.insert(options.begin(), {"--data", data_});
    return make_run_setup(parse_command_line(options), rank);
  }
  std::string error_of(const std::vector<std::string>& options) const {
    return zerorun::testing::error_of([&] { setup_of(options); });
  }
};

TEST_F(RunSetupTest, ContradictionsAreNamedAndTheDataDecideTheVocabulary) {
  EXPECT_EQ(error_of({}), "");
  const std::string small = folder_.write(
      "small.json",
      R"({"vocab_size": 100, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16})");
  for (const auto& [options, message] :
       std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"--seq_len", "300"}, "256 positions"},
           {{"--model", "huge"}, "'huge'"},
           {{"--model", small}, "vocabulary of 100"},
           {{"--sample", "", "--logits", "l"}, "a prompt, but --sample is empty"},
           {{"--trace", "t", "--trace_steps", "5", "6", "--steps", "4"}, "ends after step 4"},
           {{"--micro_batch", "9223372036854775807"}, "micro_batch"},
           {{"--micro_batch", "1000000000"}, "--micro_batch 1000000000 with --seq_len 128 needs"},
           {{"--micro_batch", "1000000000000000000"}, "EiB for the activations"}}) {
    EXPECT_THAT(error_of(options), HasSubstr(message));
  }
  EXPECT_EQ(setup_of({}).model.vocabulary, 256);
  data_ = folder_.write("t.bin", token_file(9, std::vector<uint16_t>(600, 1)));
  EXPECT_EQ(setup_of({"--sample", "1, 8 0"}).model.vocabulary, 9);
  EXPECT_THAT(error_of({"--sample", "1 9"}), HasSubstr("'9'"));
  EXPECT_THAT(error_of({"--sample", "hello"}), HasSubstr("'hello'"));
}

TEST_F(RunSetupTest, WithoutAConfigItIsStage2InBf16WhoseRateFallsToZeroByTheLastStep) {
  const RunSetup setup = setup_of({}, {.world_size = 2});
  EXPECT_EQ(setup.config.zero.stage, 2);
  EXPECT_EQ(setup.config.precision.param_dtype, DType::bf16);
  EXPECT_EQ(setup.config.gradient_clipping, 1.0);
  EXPECT_EQ(setup.batch.global_batch(), 8);
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
