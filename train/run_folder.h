#pragma once

#include <string>

#include "train/run_setup.h"
#include "train/trainer.h"

// The folder of a run: config.json and model.safetensors as Hugging Face has them, a folder for
// each checkpoint, and `latest`.
namespace zerorun::train {

// Collective. Throws IoError when the run could not save there, before it has done any work. Makes
// the folder if need be; changes nothing in it.
void check_run_folder(const std::string& folder, Communicator& comm, Device& device);

// Collective, before the first save: writes config.json. A folder that holds another run than the
// resumed one is renamed first, so that nothing of it is lost; rank 0 gets its new name, else "".
std::string claim_run_folder(const std::string& folder, const std::string& resumed,
                             const RunSetup& setup, Communicator& comm, Device& device);

// Collective. Saves all that continuing needs.
void save_run(const std::string& folder, const RunSetup& setup, Trainer& trainer,
              Communicator& comm);

// Collective. Continues after the last checkpoint; returns a warning when the run will not see the
// data it would have seen, else "". Throws CheckpointError for a checkpoint of another program or
// model.
std::string resume_run(const std::string& folder, const RunSetup& setup, Trainer& trainer,
                       Communicator& comm);

}  // namespace zerorun::train
