#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "comm/agreement.h"
#include "config/env.h"
#include "core/check.h"
#include "core/format_bytes.h"
#include "core/printable.h"
#include "optim/optimizer.h"
#include "os/free_space.h"
#include "os/open_file.h"
#include "os/process_identity.h"
#include "os/uninterrupted.h"
#include "train/run/run.h"

namespace zerorun::train {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr const char* kLockName = ".train.lock";
constexpr const char* kStep = "step";
constexpr const char* kSamples = "samples";
constexpr const char* kOptimizer = "optimizer";
constexpr const char* kModel = "model";

// Resolves the links of a path.
fs::path resolve(const std::string& given) {
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(given, error)) && !path_exists(given)) {
    fail<ConfigError>("--save {}: a link to {}, which is not there: make that folder, or remove it",
                      given, fs::read_symlink(given, error).string());
  }
  const fs::path path = fs::weakly_canonical(given, error);
  if (error) fail<IoError>("--save {}: {}", given, error.message());
  return path.has_filename() ? path : path.parent_path();
}

// Throws ConfigError for the root of the file system and the system's own folders, which no run may
// fill and rename.
void check_ownable(const std::string& given, const fs::path& relative) {
  const fs::path path = fs::absolute(relative);
  constexpr std::array<std::string_view, 13> kSystem = {"bin",   "boot", "dev", "etc",  "lib",
                                                        "lib64", "proc", "run", "sbin", "sys",
                                                        "tmp",   "usr",  "var"};
  const bool is_top = path.parent_path() == path.root_path();
  const std::string name = path.filename().string();
  const bool is_system = std::find(kSystem.begin(), kSystem.end(), name) != kSystem.end();
  if (path != path.root_path() && !(is_top && is_system)) return;
  fail<ConfigError>(
      "--save {}: {} is the system's; expected a folder that this run may fill and rename, as {}",
      given, path.string(), (path / "my_run").string());
}

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

bool is_below(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  for (fs::path at = fs::weakly_canonical(path, error); !error && at.has_relative_path();
       at = at.parent_path()) {
    if (at == folder) return true;
  }
  return false;
}

// "out/train" -> "out/train.1", or the next unused number.
fs::path free_name(const fs::path& folder) {
  int number = 1;
  const auto name = [&] { return fs::path(fmt::format("{}.{}", folder.string(), number)); };
  while (path_exists(name())) ++number;
  return name();
}

// Checkpoints that `latest` does not name are a run's, too.
bool holds_run(const fs::path& folder) {
  return entry_exists(folder / kLatestName) || !list_tags(folder).empty();
}

// The two lines of a lock file: the process that holds the lock, and its job. Both are "" if there
// is none.
struct Holder {
  std::string process;
  std::string job;
};

Holder last_holder(const fs::path& folder) {
  constexpr size_t kLimit = 1024;
  Holder holder;
  const FileDescriptor file = open_file(folder / kLockName, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  std::string bytes(kLimit, '\0');
  const ssize_t count =
      file ? uninterrupted([&] { return read(file.get(), bytes.data(), bytes.size()); }) : 0;
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  std::istringstream lines(bytes);
  std::getline(lines, holder.process);
  std::getline(lines, holder.job);
  return holder;
}

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

// Lists the values of `own` that were others in a saved object.
std::string differences_of(const Json& own, const Json& saved) {
  std::vector<std::string> found;
  for (const auto& [key, value] : own.items()) {
    const Json before = saved.is_object() ? saved.value(key, Json()) : Json();
    if (before == value) continue;
    found.push_back(fmt::format("{} was {} and is {}", key, before.dump(), value.dump()));
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

// Checks the model to which the states belong. config.json has it, too, but is not covered by a
// hash.
void check_model(const Json& state, const std::string& folder, const RunSetup& setup) {
  if (!state.contains(kModel)) return;  // earlier versions did not say
  const std::string differences = differences_of(Json::parse(to_json(setup.model)), state[kModel]);
  if (differences.empty()) return;
  fail<CheckpointError>(
      "--resume {}: the checkpoint is of another model: {}: leave out --model, and restore "
      "config.json there if it was changed",
      folder, differences);
}

}  // namespace

RunFolder::RunFolder(const TrainOptions& options, const std::string& job)
    : given_(options.save), path_(resolve(options.save)) {
  check_ownable(given_, path_);
  check_other_options(options);
  create_folders(path_);
  lock(job);
  if (!options.resume.empty() && is_same(path_, options.resume)) return;
  if (holds_run(path_)) {
    move_away();
    create_folders(path_);
    lock(job);
    return;
  }
  // Weights without checkpoints are not this program's.
  constexpr std::array<std::string_view, 4> kWeights = {".safetensors", ".bin", ".pt", ".pth"};
  for (const std::string& name : entry_names(path_)) {
    const std::string ending = fs::path(name).extension().string();
    if (std::ranges::find(kWeights, ending) == kWeights.end()) continue;
    fail<ConfigError>(
        "--save {}: the folder contains {}, which no run of train has written; saving would "
        "overwrite it or mix it with this run's files: give another --save",
        given_, name);
  }
}

void RunFolder::check_other_options(const TrainOptions& options) const {
  if (!options.init.empty() && is_below(options.init, path_)) {
    fail<ConfigError>(
        "--init {} lies in --save {}, where this run's model would replace it: give another --save",
        options.init, given_);
  }
  if (!options.resume.empty() && is_below(options.resume, path_) &&
      !is_same(options.resume, path_)) {
    fail<ConfigError>(
        "--resume {} lies in --save {}: give another --save to go on from that checkpoint, or "
        "--resume {} for the last one",
        options.resume, given_, given_);
  }
}

void RunFolder::move_away() {
  std::error_code ignored;
  constexpr const char* kAdvice =
      "give this run another --save, or continue the one that is there with --resume";
  if (is_below(fs::current_path(ignored), path_)) {
    fail<ConfigError>(
        "--save {}: the folder contains another run and the working folder, so it cannot be "
        "renamed to keep that run: {}",
        given_, kAdvice);
  }
  const fs::path kept = free_name(path_);
  try {
    rename_path(path_, kept);
  } catch (const IoError& error) {
    fail<IoError>(
        "--save {}: the folder contains another run, and renaming it to keep that run failed: {}: "
        "{}",
        given_, error.what(), kAdvice);
  }
  moved_to_ = kept.string();
}

void RunFolder::check_room(uint64_t nbytes) const {
  const uint64_t free = free_space(path_).value_or(std::numeric_limits<uint64_t>::max());
  if (free >= nbytes) return;
  fail<IoError>(
      "--save {}: a checkpoint and the model take {}, the disk has {} free: free some space, or "
      "save elsewhere",
      given_, format_bytes(nbytes), format_bytes(free));
}

void RunFolder::lock(const std::string& job) {
  const fs::path file = path_ / kLockName;
  const auto fail_writing = [&](int reason) {
    fail<IoError>("--save {}: cannot write {}: {}", path_.string(), kLockName,
                  std::strerror(reason));
  };
  lock_ = FileDescriptor(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!lock_) fail_writing(errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return;
    const std::string process = printable(last_holder(path_).process);
    fail<IoError>(
        "--save {}: another run saves there, {}: wait until it has ended, or give this run another "
        "--save",
        path_.string(), process.empty() ? "another process" : process);
  }
  const std::string text = fmt::format("process {} on {}\n{}\n", ::getpid(), host_name(), job);
  const bool written =
      ::ftruncate(lock_.get(), 0) == 0 &&
      ::pwrite(lock_.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  if (!written) fail_writing(errno);
}

std::string job_name() {
  const std::string secret = read_environment("ZERORUN_JOB_SECRET").value_or("");
  std::string id = read_environment("TORCHELASTIC_RUN_ID").value_or("");
  if (id == "none") id.clear();  // default value of launchers
  if (secret.empty() && id.empty()) return {};
  // The hash distinguishes jobs and does not reveal the secret, which is random.
  return to_hex(hash_of(secret + "/" + id));
}

bool continues_after_restart(const TrainOptions& options, const std::string& job) {
  const auto restarts =
      read_environment_int("TORCHELASTIC_RESTART_COUNT", 0, std::numeric_limits<int>::max());
  if (restarts.value_or(0) == 0 || options.save.empty() || job.empty()) return false;
  return holds_run(options.save) && last_holder(options.save).job == job;
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
  Json saved = data_state(setup);  // with what checkpoints of earlier versions lack
  saved.update(state);
  const std::string differences = differences_of(data_state(setup), saved);
  if (differences.empty()) return {};
  return fmt::format(
      "the steps will not see the data that the saved run would have seen: {}; to continue that "
      "run, give it the --data, --seq_len and --seed that it had",
      differences);
}

}  // namespace zerorun::train
