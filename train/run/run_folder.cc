#include "train/run/run_folder.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "checkpoint/files/file.h"
#include "checkpoint/files/hash.h"
#include "comm/agreement.h"
#include "core/check.h"
#include "optim/optimizer.h"
#include "train/data/hf_folder.h"
#include "zerorun/checkpoint.h"

namespace zerorun::train {

namespace {

using Json = nlohmann::json;

constexpr const char* kStep = "step";
constexpr const char* kSamples = "samples";
constexpr const char* kOptimizer = "optimizer";
constexpr const char* kModel = "model";

// The settings that determine, together with the position, which tokens a step uses.
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

// Checks the optimizer, because states are valid only for the rule that made them, and several
// rules have states of the same name.
void check_optimizer(const Json& state, const std::string& folder, const RunSetup& setup) {
  const std::string own = rule_name(setup.config.optimizer);
  const Json saved = state.value(kOptimizer, Json(own));  // earlier versions did not say
  if (saved == own) return;
  const bool has_weights = path_exists(folder + "/model.safetensors");
  fail<CheckpointError>(
      "--resume {}: its optimizer states are those of {}, this run's optimizer is {}: give the "
      "optimizer that it had in --config{}",
      folder, saved.is_string() ? saved.get<std::string>() : saved.dump(), own,
      has_weights ? fmt::format(", or start from its weights alone with --init {}", folder) : "");
}

// Checks the model to which the states belong. config.json has it, too, but is not covered by a
// hash.
void check_model(const Json& state, const std::string& folder, const RunSetup& setup) {
  if (!state.contains(kModel)) return;  // earlier versions did not say
  const Json own = Json::parse(to_json(setup.model));
  const Json& saved = state[kModel];
  std::string differences;
  for (const auto& [key, value] : own.items()) {
    const Json before = saved.is_object() ? saved.value(key, Json()) : Json();
    if (before == value) continue;
    differences += fmt::format("{}{} was {} and is {}", differences.empty() ? "" : ", ", key,
                               before.dump(), value.dump());
  }
  if (differences.empty()) return;
  fail<CheckpointError>(
      "--resume {}: the checkpoint is of another model: {}: leave out --model, and restore "
      "config.json there if it was changed",
      folder, differences);
}

}  // namespace

void write_run_config(const std::string& folder, const RunSetup& setup, Communicator& comm,
                      Device& device) {
  Agreement(comm, device.inline_stream()).run("folder of the run", [&] {
    if (comm.rank() == 0) write_hf_config(folder, setup.model);
  });
}

uint64_t saved_nbytes(Trainer& trainer, Communicator& comm) {
  EngineStates& states = trainer.engine().states();
  uint64_t own = checkpoint_nbytes(states);
  if (comm.rank() == 0) {
    for (const ParameterSpec& spec : trainer.engine().parameters()) {
      own += static_cast<uint64_t>(spec.numel()) * size_of(trainer.engine().param_dtype());
    }
  }
  Agreement agreement(comm, states.device().inline_stream());
  return static_cast<uint64_t>(agreement.reduce(static_cast<int64_t>(own), ReduceOp::sum));
}

void save_run(const std::string& folder, const RunSetup& setup, Trainer& trainer,
              Communicator& comm, AsyncSaver* saver) {
  Json state = data_state(setup);
  state[kOptimizer] = rule_name(setup.config.optimizer);
  state[kModel] = Json::parse(to_json(setup.model));
  state[kStep] = trainer.position().step;
  state[kSamples] = trainer.position().samples;
  const SaveOptions options = {
      .directory = folder,
      .tag = fmt::format("step{}", trainer.position().step),
      .client_state = state.dump(),
      .keep = {.last = setup.options.keep_last, .every = setup.options.keep_every}};
  if (saver != nullptr) {
    saver->save(options);
  } else {
    save_checkpoint(trainer.engine().states(), comm, options);
  }
}

std::string resume_run(const std::string& folder, const RunSetup& setup, Trainer& trainer,
                       Communicator& comm) {
  Agreement(comm, trainer.engine().device().inline_stream()).run("settings of the checkpoint", [&] {
    const Json state = Json::parse(SavedModel(folder).client_state(), nullptr, false);
    if (!state.is_object()) return;  // resume_run reports that train did not save it
    check_optimizer(state, folder, setup);
    check_model(state, folder, setup);
  });
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
