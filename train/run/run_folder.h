#pragma once

#include <string>

#include "train/run/run_setup.h"
#include "train/run/trainer.h"
#include "zerorun/checkpoint.h"

// Reads and writes the folder of a run: config.json and model.safetensors in Hugging Face's format,
// a folder for each checkpoint, and `latest`.
namespace zerorun::train {

// Writes config.json before the first save. Collective.
void write_run_config(const std::string& folder, const RunSetup& setup, Communicator& comm,
                      Device& device);

// Returns the size in bytes of a checkpoint and of the saved model, for all ranks together.
// Collective.
uint64_t saved_nbytes(Trainer& trainer, Communicator& comm);

// Saves everything that is needed to continue; in the background if there is a saver. Collective.
void save_run(const std::string& folder, const RunSetup& setup, Trainer& trainer,
              Communicator& comm, AsyncSaver* saver = nullptr);

// Loads the last checkpoint. Returns a warning if the run will see other data than an uninterrupted
// run would have seen, else "". Throws CheckpointError for a checkpoint of another program or
// model. Collective.
std::string resume_run(const std::string& folder, const RunSetup& setup, Trainer& trainer,
                       Communicator& comm);

}  // namespace zerorun::train
