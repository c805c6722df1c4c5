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

// Settings from the command line and from the block "zerorun.train" of the config; the defaults 0
// and "" mean that nothing is given.
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

  // File of a timeline, also from the block "zerorun.trace" of the config.
  std::string trace;
  std::vector<int64_t> trace_steps;  // the first and the last, from 1; empty: three early ones

  // On the command line only.
  Accelerator accelerator = Accelerator::automatic;
  bool tf32 = false;
  std::optional<int64_t> attention_workspace;  // MiB
  int64_t sample_tokens = 256;
  double temperature = 0.8;
  int64_t top_k = 40;
  std::string logits;
};

struct CommandLine {
  TrainOptions options;
  std::optional<ParsedConfig> config;
  std::string help;  // not empty: the text that was asked for
};

// Defines the options of train, grouped by subject as its help shows them.
void define_options(CLI::App& app, TrainOptions& options);

// `arguments` without the program's name. Reads the config, if one is named; the command line wins
// over it. Throws ConfigError naming the option or the config's JSON pointer.
CommandLine parse_command_line(const std::vector<std::string>& arguments);

}  // namespace zerorun::train
