#include "train/run/claimed_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <system_error>

#include "checkpoint/files/file.h"
#include "checkpoint/files/hash.h"
#include "checkpoint/files/layout.h"
#include "config/env.h"
#include "core/check.h"
#include "core/format_bytes.h"
#include "os/free_space.h"

namespace zerorun::train {

namespace fs = std::filesystem;

namespace {

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

}  // namespace

ClaimedFolder::ClaimedFolder(const TrainOptions& options, const std::string& job)
    : given_(options.save), path_(resolve(options.save)) {
  check_ownable(given_, path_);
  check_other_options(options);
  create_folders(path_);
  lock_ = FolderLock(path_, job);
  if (!options.resume.empty() && is_same(path_, options.resume)) return;
  if (holds_run(path_)) {
    move_away(job);
  } else {
    check_content();
  }
}

void ClaimedFolder::check_other_options(const TrainOptions& options) const {
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

// Throws ConfigError for a folder with weights but without checkpoints, which this program did not
// write.
void ClaimedFolder::check_content() const {
  constexpr std::array<const char*, 4> kWeights = {".safetensors", ".bin", ".pt", ".pth"};
  std::error_code error;
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    for (const char* suffix : kWeights) {
      if (it->path().extension() != suffix) continue;
      fail<ConfigError>(
          "--save {}: the folder contains {}, which no run of train has written; saving would "
          "overwrite it or mix it with this run's files: give another --save",
          given_, it->path().filename().string());
    }
  }
}

void ClaimedFolder::move_away(const std::string& job) {
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
  create_folders(path_);
  lock_ = FolderLock(path_, job);
}

void ClaimedFolder::check_room(uint64_t nbytes) const {
  const uint64_t free = free_space(path_).value_or(std::numeric_limits<uint64_t>::max());
  if (free >= nbytes) return;
  fail<IoError>(
      "--save {}: a checkpoint and the model take {}, the disk has {} free: free some space, or "
      "save elsewhere",
      given_, format_bytes(nbytes), format_bytes(free));
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
  return holds_run(options.save) && FolderLock::last_job(options.save) == job;
}

}  // namespace zerorun::train
