#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zerorun/config.h"
#include "zerorun/device.h"

namespace CLI {
class App;
}  // namespace CLI

namespace zerorun::train {

// Defaults of a run without a config. With them nano reaches a loss of about 1.63 on Python's
// library: a small model learns more from many small batches than from 400 steps of 2 x 8 sequences
// of 256.
inline constexpr int64_t kSteps = 700;
inline constexpr int64_t kMicroBatch = 4;
inline constexpr int64_t kSeqLen = 128;  // at most

// Defaults of a run with a config, for values that the config does not have.
inline constexpr int64_t kConfigSteps = 400;
inline constexpr int64_t kConfigMicroBatch = 8;
inline constexpr int64_t kConfigSeqLen = 256;  // at most

// Options from the command line and from the section "zerorun.train" of the config. 0 and "" mean
// "not given".
// size: one option each
struct TrainOptions {
  std::vector<std::string> data;
  std::string model;
  std::string init;
  int64_t seq_len = 0;
  int64_t micro_batch = 0;
  int64_t steps = -1;  // not given
  uint64_t seed = 1;
  std::string dtype;
  std::string save = "out/train";
  int64_t save_every = 0;
  bool save_async = false;
  int64_t keep_last = 0;
  int64_t keep_every = 0;
  std::string resume;
  int64_t eval_every = 0;
  std::optional<std::string> sample;
  bool recompute = false;
  std::string metrics;

  // File for a timeline, also from the section "zerorun.trace" of the config.
  std::string trace;
  std::vector<int64_t> trace_steps;  // first and last step, from 1; empty: three early steps

  // Only on the command line.
  Accelerator accelerator = Accelerator::automatic;
  bool tf32 = false;
  std::string epilogues = "all";
  std::optional<int64_t> attention_workspace;  // MiB
  bool fast_attention = false;
  int64_t sample_tokens = 256;
  double temperature = 0.8;
  int64_t top_k = 40;
  std::string logits;
};

struct CommandLine {
  TrainOptions options;
  std::optional<ParsedConfig> config;
  std::string help;  // help text, if it was requested
};

// Defines the options of train in the groups that its help shows.
void define_options(CLI::App& app, TrainOptions& options);

// Parses the arguments (without the program's name) and the config, if one is given; the command
// line takes precedence. Throws ConfigError that names the option or the JSON pointer of the
// config.
CommandLine parse_command_line(const std::vector<std::string>& arguments);

}  // namespace zerorun::train
