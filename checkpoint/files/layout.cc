#include "checkpoint/files/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <random>
#include <system_error>
#include <utility>

#include "checkpoint/files/file.h"
#include "core/check.h"
#include "core/printable.h"
#include "os/text_file.h"

namespace zerorun {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kShardPrefix = "rank";
constexpr std::string_view kBuffersPrefix = "buffers-";
constexpr std::string_view kShardSuffix = ".safetensors";
constexpr std::string_view kHeaderSuffix = ".header";
constexpr std::string_view kTemporaryMark = ".tmp-";
constexpr size_t kMaxTagNbytes = 200;  // file systems allow 255, and temporary names add 22

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

struct Unfinished {
  std::string_view name;  // that the entry would have got
  uint64_t save_id = 0;
};

// nullopt when `entry` is not the name of an unfinished one.
std::optional<Unfinished> parse_unfinished(std::string_view entry) {
  constexpr size_t kTail = kTemporaryMark.size() + kHexDigits;
  if (entry.size() < kTail + 2 || entry.front() != '.') return {};
  const std::string_view tail = entry.substr(entry.size() - kTail);
  const auto id = from_hex(tail.substr(kTemporaryMark.size()));
  if (!tail.starts_with(kTemporaryMark) || !id) return {};
  return Unfinished{entry.substr(1, entry.size() - kTail - 1), *id};
}

template <typename Wanted>
int remove_entries(const fs::path& directory, const Wanted& wanted) {
  int removed = 0;
  for (const std::string& name : entry_names(directory)) {
    const std::optional<Unfinished> entry = parse_unfinished(name);
    if (!entry || !wanted(*entry)) continue;
    std::error_code ignored;
    fs::remove_all(directory / name, ignored);
    if (!ignored) ++removed;
  }
  return removed;
}

bool holds_manifest(const fs::path& folder) { return entry_exists(folder / kManifestName); }

// Runs of digits compare by value, so that step9 < step10.
bool natural_less(const std::string& a, const std::string& b) {
  const auto key = [](const std::string& text) {
    std::string padded;
    for (size_t i = 0; i < text.size();) {
      size_t end = i;
      while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
      if (end == i) {
        padded += text[i++];
      } else {
        padded += fmt::format("{:0>20}", text.substr(i, end - i));
        i = end;
      }
    }
    return padded;
  };
  return std::pair(key(a), a) < std::pair(key(b), b);
}

[[noreturn]] void fail_not_found(const fs::path& directory, std::string_view problem) {
  constexpr size_t kShown = 20;
  if (!path_exists(directory)) {
    fail<CheckpointError>("{}; there is no {}", problem, directory.string());
  }
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    fail<CheckpointError>("{} is not a folder; expected a checkpoint, or a folder of them",
                          directory.string());
  }
  std::vector<std::string> tags = list_tags(directory);
  if (tags.empty())
    fail<CheckpointError>("{}; {} holds no checkpoints", problem, directory.string());
  const size_t hidden = tags.size() > kShown ? tags.size() - kShown : 0;
  tags.erase(tags.begin(), tags.begin() + static_cast<std::ptrdiff_t>(hidden));
  fail<CheckpointError>("{}; checkpoints in {}: {}{}", problem, directory.string(),
                        fmt::join(tags, ", "),
                        hidden > 0 ? fmt::format(" and {} older", hidden) : "");
}

}  // namespace

std::string shard_name(int rank, uint64_t save_id) {
  return fmt::format("{}{:05}-{}{}", kShardPrefix, rank, to_hex(save_id), kShardSuffix);
}

bool is_shard_name(std::string_view name) {
  if (!name.starts_with(kShardPrefix) || !name.ends_with(kShardSuffix)) return false;
  name.remove_prefix(kShardPrefix.size());
  name.remove_suffix(std::min(name.size(), kShardSuffix.size()));
  const size_t dash = name.find('-');
  return dash != name.npos && all_digits(name.substr(0, dash)) &&
         from_hex(name.substr(dash + 1)).has_value();
}

fs::path header_path(fs::path file) { return file += kHeaderSuffix; }

bool is_header_name(std::string_view name) {
  return name.ends_with(kHeaderSuffix) &&
         is_shard_name(name.substr(0, name.size() - kHeaderSuffix.size()));
}

std::string buffers_name(uint64_t save_id) {
  return fmt::format("{}{}{}", kBuffersPrefix, to_hex(save_id), kShardSuffix);
}

bool is_buffers_name(std::string_view name) {
  return name.starts_with(kBuffersPrefix) && name.ends_with(kShardSuffix) &&
         name.size() == kBuffersPrefix.size() + kHexDigits + kShardSuffix.size() &&
         from_hex(name.substr(kBuffersPrefix.size(), kHexDigits)).has_value();
}

fs::path temporary_path(const fs::path& path, uint64_t save_id) {
  return path.parent_path() /
         fmt::format(".{}{}{}", path.filename().string(), kTemporaryMark, to_hex(save_id));
}

uint64_t random_id() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

uint64_t new_save_id() {
  static const uint32_t session = std::random_device{}();
  // A child of fork() has the parent's session, but not its number.
  return (uint64_t{session ^ static_cast<uint32_t>(getpid())} << 32) | std::random_device{}();
}

void check_tag(const std::string& tag) {
  const bool is_printable = std::none_of(tag.begin(), tag.end(), [](char c) {
    return std::iscntrl(static_cast<unsigned char>(c)) != 0;
  });
  if (tag.empty() || tag.front() == '.' || tag == kLatestName || tag.size() > kMaxTagNbytes ||
      tag.find('/') != tag.npos || !is_printable) {
    fail<ConfigError>(
        "the checkpoint tag '{}' cannot name a folder: expected 1 to {} bytes "
        "without '/', not beginning with '.' and not '{}'",
        printable(tag), kMaxTagNbytes, kLatestName);
  }
}

std::vector<std::string> entry_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  return names;
}

std::vector<std::string> list_tags(const fs::path& directory) {
  std::error_code error;
  const fs::directory_iterator readable(directory, error);
  if (error == std::errc::permission_denied) {
    fail<IoError>("cannot read the folder {}: {}", directory.string(), error.message());
  }
  std::vector<std::string> tags = entry_names(directory);
  std::erase_if(tags, [&](const std::string& name) {
    return name.starts_with('.') || !holds_manifest(directory / name);
  });
  std::sort(tags.begin(), tags.end(), natural_less);
  return tags;
}

std::string read_latest(const fs::path& directory) {
  const fs::path path = directory / kLatestName;
  if (!entry_exists(path)) {
    fail_not_found(directory, fmt::format("{} does not exist", path.string()));
  }
  std::string tag = read_text(path, kMaxTagNbytes + 2);
  while (!tag.empty() && std::isspace(static_cast<unsigned char>(tag.back())) != 0) tag.pop_back();
  try {
    check_tag(tag);
  } catch (const ConfigError& error) {
    fail_not_found(directory, fmt::format("{} is damaged: {}", path.string(), error.what()));
  }
  return tag;
}

fs::path find_checkpoint(const fs::path& directory, const std::string& tag) {
  if (tag.empty() && holds_manifest(directory)) return fs::canonical(directory);
  if (!tag.empty()) check_tag(tag);
  const std::string wanted = tag.empty() ? read_latest(directory) : tag;
  if (!holds_manifest(directory / wanted)) {
    fail_not_found(directory,
                   fmt::format("{} holds no checkpoint{}", (directory / wanted).string(),
                               tag.empty() ? fmt::format(", although {} names it", kLatestName)
                                           : std::string()));
  }
  return directory / wanted;
}

int remove_leftovers(const fs::path& directory, uint64_t save_id) {
  return remove_entries(
      directory, [&](const Unfinished& entry) { return entry.save_id >> 32 != save_id >> 32; });
}

int remove_leftovers_of(const fs::path& path) {
  const std::string wanted = path.filename().string();
  return remove_entries(path.parent_path().empty() ? fs::path(".") : path.parent_path(),
                        [&](const Unfinished& entry) { return entry.name == wanted; });
}

}  // namespace zerorun
