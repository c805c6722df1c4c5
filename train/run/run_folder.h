#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "os/file_descriptor.h"
#include "train/run/options.h"
#include "train/run/run_setup.h"
#include "train/run/trainer.h"
#include "zerorun/checkpoint.h"

// The folder of a run: config.json and model.safetensors in Hugging Face's format, a folder for
// each checkpoint, `latest`, and the lock of the run that saves there.
namespace zerorun::train {

// The claim of a run, on rank 0, to its --save folder. It lasts as long as this object; the system
// ends it when the process ends, for whatever reason. A folder with checkpoints of another run is
// renamed first, so that nothing is lost.
class RunFolder {
 public:
  RunFolder() = default;  // claims nothing
  // Creates the folder if necessary. `job` is the name of the job, without line breaks, or empty.
  // Throws ConfigError if saving would destroy other content of the folder, and IoError if it
  // cannot be written or renamed, or another run holds it, whose process and host are named. A file
  // system that does not support locks is no error.
  RunFolder(const TrainOptions& options, const std::string& job);

  // Returns the new name of the folder that contained another run, else "".
  const std::string& moved_to() const { return moved_to_; }
  // Throws IoError if the disk has less free space than `nbytes`.
  void check_room(uint64_t nbytes) const;

 private:
  void check_other_options(const TrainOptions& options) const;
  void check_content() const;
  void move_away();
  void lock(const std::string& job);

  std::string given_;           // --save as it was written
  std::filesystem::path path_;  // without links
  std::string moved_to_;
  FileDescriptor lock_;
};

// Returns a name that all ranks of a job share, also after restarts; "" if the job has none.
std::string job_name();
// True if the launcher has restarted this run and --save has a checkpoint of the same job.
bool continues_after_restart(const TrainOptions& options, const std::string& job);

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
