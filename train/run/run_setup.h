#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/data/batches.h"
#include "train/data/hf_folder.h"
#include "train/run/options.h"

namespace zerorun::train {

// Everything a run needs that is read rather than computed. Options, config, data and model have
// been checked against each other.
struct RunSetup {
  TrainOptions options;
  Config config;                      // batch sizes resolved
  std::vector<ConfigValue> settings;  // of the file it is from, if there is one
  GptConfig model;
  BatchShape batch;
  std::unique_ptr<Corpus> corpus;
  std::unique_ptr<Batches> batches;  // of the corpus
  std::optional<HfWeights> weights;  // what --init names
  std::string data_description;
  std::vector<int32_t> prompt;  // of the sample; empty: none
};

// The memory in which activations will lie. Host memory is checked before it is asked for, since a
// kernel that overcommits grants more than there is; other devices refuse by themselves.
enum class ActivationMemory { host, device };

// Does not communicate. Throws ConfigError, CheckpointError or IoError.
RunSetup make_run_setup(const CommandLine& line, const RankInfo& rank,
                        ActivationMemory activations = ActivationMemory::host);

}  // namespace zerorun::train
