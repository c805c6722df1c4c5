#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/data/batches.h"
#include "train/data/hf_folder.h"
#include "train/run/options.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

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

// Reads and checks the inputs, without communication. Throws ConfigError, CheckpointError or
// IoError. If activations are on the host, its free memory is checked, because a kernel that
// overcommits grants more than there is; other devices report a failed allocation.
RunSetup make_run_setup(const CommandLine& line, const RankInfo& rank, bool on_host = true);

// Returns the description of the run for the first line of a metrics file: settings, environment,
// memory plan, and measured peak rates of the ranks. Collective.
nlohmann::ordered_json run_description(const RunSetup& setup, Communicator& comm, Device& device);

}  // namespace zerorun::train
