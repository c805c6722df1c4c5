#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/data/batches.h"
#include "train/data/hf_folder.h"
#include "train/run/options.h"

namespace zerorun::train {

// The inputs of a run: options, config, data and model, which have been checked against each other.
struct RunSetup {
  TrainOptions options;
  Config config;                      // batch sizes resolved
  std::vector<ConfigValue> settings;  // settings of the config file, if there is one
  GptConfig model;
  BatchShape batch;
  std::unique_ptr<Corpus> corpus;
  std::unique_ptr<Batches> batches;  // batches of `corpus`
  std::optional<HfWeights> weights;  // weights of --init
  std::string data_description;
  std::vector<int32_t> prompt;  // prompt of the sample; empty: no sample
};

// Where activations will be stored. Free host memory is checked before allocating, because a kernel
// that overcommits grants more memory than there is; other devices report a failed allocation.
enum class ActivationMemory { host, device };

// Reads and checks the inputs, without communication. Throws ConfigError, CheckpointError or
// IoError.
RunSetup make_run_setup(const CommandLine& line, const RankInfo& rank,
                        ActivationMemory activations = ActivationMemory::host);

}  // namespace zerorun::train
