#include "train/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/file.h"
#include "checkpoint/hash.h"
#include "comm/agreement.h"
#include "core/check.h"
#include "optim/optimizer.h"
#include "train/hf_folder.h"
#include "zerorun/checkpoint.h"

namespace zerorun::train {

namespace {

using Json = nlohmann::json;

constexpr const char* kStep = "step";
constexpr const char* kSamples = "samples";
constexpr const char* kOptimizer = "optimizer";

// The settings that decide, besides the position, which tokens a step sees.
Json data_state(const RunSetup& setup) {
  return {{"seed", setup.options.seed},
          {"seq_len", setup.batch.seq_len},
          {"data_tokens", setup.corpus->size()},
          {"data_hash", to_hex(setup.corpus->hash())}};
}

int64_t read_count(const Json& state, const char* key, const std::string& folder) {
  const auto found = state.is_object() ? state.find(key) : state.end();
  if (found == state.end() || !found->is_number_integer() || found->get<int64_t>() < 0) {
    fail<CheckpointError>(
        "{}: the checkpoint does not say how many {} were done, so train did not save it", folder,
        key);
  }
  return found->get<int64_t>();
}

// States mean something to the rule that made them only; several rules have states of one name.
void check_optimizer(const std::string& folder, const RunSetup& setup) {
  const Json state =
      Json::parse(SavedModel(folder).client_state(), nullptr, /*allow_exceptions=*/false);
  const std::string own = rule_name(setup.config.optimizer);
  if (!state.is_object()) return;
  const Json saved = state.value(kOptimizer, Json(own));  // earlier versions did not say
  if (saved == own) return;
  const bool has_weights = path_exists(folder + "/model.safetensors");
  fail<CheckpointError>(
      "--resume {}: its optimizer states are those of {}, this run's optimizer is {}: give the "
      "optimizer that it had in --config{}",
      folder, saved.is_string() ? saved.get<std::string>() : saved.dump(), own,
      has_weights ? fmt::format(", or start from its weights alone with --init {}", folder) : "");
}

// "out/train" -> "out/train.1", or the next number that is free.
std::string free_name(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  int number = 1;
  while (path_exists(fmt::format("{}.{}", folder, number))) ++number;
  return fmt::format("{}.{}", folder, number);
}

}  // namespace

void check_run_folder(const std::string& folder, Communicator& comm, Device& device) {
  Agreement(comm, device.inline_stream()).run("folder of the run", [&] {
    if (comm.rank() != 0) return;
    create_folders(folder);
    if (::access(folder.c_str(), W_OK) == 0) return;
    fail<IoError>("--save {}: cannot write there: {}", folder, std::strerror(errno));
  });
}

std::string claim_run_folder(const std::string& folder, const std::string& resumed,
                             const RunSetup& setup, Communicator& comm, Device& device) {
  std::string moved;
  Agreement(comm, device.inline_stream()).run("folder of the run", [&] {
    if (comm.rank() != 0) return;
    std::error_code ignored;
    const bool is_resumed =
        !resumed.empty() && std::filesystem::equivalent(folder, resumed, ignored);
    if (!is_resumed && path_exists(folder + "/latest")) {
      moved = free_name(folder);
      rename_path(folder, moved);
    }
    write_hf_config(folder, setup.model);
  });
  return moved;
}

void save_run(const std::string& folder, const RunSetup& setup, Trainer& trainer,
              Communicator& comm) {
  Json state = data_state(setup);
  state[kOptimizer] = rule_name(setup.config.optimizer);
  state[kStep] = trainer.position().step;
  state[kSamples] = trainer.position().samples;
  save_checkpoint(trainer.engine().states(), comm,
                  {folder, fmt::format("step{}", trainer.position().step), state.dump()});
}

std::string resume_run(const std::string& folder, const RunSetup& setup, Trainer& trainer,
                       Communicator& comm) {
  Agreement(comm, trainer.engine().device().inline_stream())
      .run("optimizer of the checkpoint", [&] { check_optimizer(folder, setup); });
  const LoadedCheckpoint loaded = load_checkpoint(trainer.engine().states(), comm, folder);
  const Json state = Json::parse(loaded.client_state, nullptr, /*allow_exceptions=*/false);
  trainer.set_position({read_count(state, kStep, folder), read_count(state, kSamples, folder)});
  std::string differences;
  const Json data = data_state(setup);
  for (const auto& [key, value] : data.items()) {
    const Json saved = state.value(key, value);  // as checkpoints of earlier versions lack some
    if (saved != value) {
      differences += fmt::format("{}{} was {} and is {}", differences.empty() ? "" : ", ", key,
                                 saved.dump(), value.dump());
    }
  }
  if (differences.empty()) return {};
  return fmt::format(
      "the steps will not see the data that the saved run would have seen: {}; to continue that "
      "run, give it the --data, --seq_len and --seed that it had",
      differences);
}

}  // namespace zerorun::train
