#pragma once

#include <string>

#include "train/run/run_setup.h"
#include "train/run/trainer.h"
#include "zerorun/checkpoint.h"

// The folder of a run: config.json and model.safetensors as Hugging Face has them, a folder for
// each checkpoint, and `latest`.
namespace zerorun::train {

// Collective, before the first save: writes config.json.
void write_run_config(const std::string& folder, const RunSetup& setup, Communicator& comm,
                      Device& device);

// Collective. Bytes of a checkpoint and of the model beside it, of all ranks.
uint64_t saved_nbytes(Trainer& trainer, Communicator& comm);

// Collective. Saves all that continuing needs; with a saver, in the background.
void save_run(const std::string& folder, const RunSetup& setup, Trainer& trainer,
              Communicator& comm, AsyncSaver* saver = nullptr);

// Collective. Continues after the last checkpoint; returns a warning when the run will not see the
// data it would have seen, else "". Throws CheckpointError for a checkpoint of another program or
// model.
std::string resume_run(const std::string& folder, const RunSetup& setup, Trainer& trainer,
                       Communicator& comm);

}  // namespace zerorun::train
