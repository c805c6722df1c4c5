#include "comm/stall_report.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "config/env.h"
#include "core/check.h"
#include "core/log.h"
#include "os/file_descriptor.h"
#include "os/whole_file.h"

namespace zerorun {

namespace {

constexpr size_t kMaxStackBytes = size_t{16} << 10;  // of a rank
// Of a host's ranks, so that they fit into a value of the store.
constexpr size_t kMaxHostStackBytes = size_t{384} << 10;
constexpr size_t kMaxWaitingLines = 32;
constexpr size_t kMaxStacks = 8;
constexpr const char* kEnded = "has ended";

nlohmann::json lines_of(const std::string& text, size_t max_bytes) {
  nlohmann::json lines = nlohmann::json::array();
  std::istringstream stream(text.substr(0, max_bytes));
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string text_of(const nlohmann::json& lines) {
  std::string text;
  for (const nlohmann::json& line : lines) text += line.get<std::string>() + '\n';
  return text;
}

nlohmann::json json_of(const RankActivity& rank, size_t max_stack_bytes = kMaxStackBytes) {
  return {{"rank", rank.rank},
          {"pid", rank.pid},
          {"host", rank.host},
          {"state", rank.state},
          {"last_operation", rank.operation},
          {"label", rank.label},
          {"waits_for", rank.waits_for ? nlohmann::json(*rank.waits_for) : nlohmann::json()},
          {"waited_s", rank.waited_s},
          {"python_stack", lines_of(rank.python_stacks, max_stack_bytes)}};
}

RankActivity activity_of(const nlohmann::json& entry) {
  RankActivity rank;
  entry.at("rank").get_to(rank.rank);
  entry.at("pid").get_to(rank.pid);
  entry.at("host").get_to(rank.host);
  entry.at("state").get_to(rank.state);
  entry.at("last_operation").get_to(rank.operation);
  entry.at("label").get_to(rank.label);
  if (!entry.at("waits_for").is_null()) rank.waits_for = entry.at("waits_for").get<int>();
  entry.at("waited_s").get_to(rank.waited_s);
  rank.python_stacks = text_of(entry.at("python_stack"));
  return rank;
}

std::string dump(const nlohmann::json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string indented(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) result += "    " + line + '\n';
  return result;
}

std::string activity_text(const RankActivity& rank) {
  if (!rank.waits_for) return rank.state;
  return fmt::format("waits for rank {} since {:.1f} s", *rank.waits_for, rank.waited_s);
}

std::string stacks_text(const RankActivity& rank) {
  const std::string who = fmt::format("rank {} (pid {} on {})", rank.rank, rank.pid, rank.host);
  std::string text =
      rank.python_stacks.empty()
          ? fmt::format("  {} {}: it shows no Python stack\n", who, rank.state)
          : fmt::format("  Python stack of {}:\n{}", who, indented(rank.python_stacks));
  if (rank.pid != 0 && !rank.state.ends_with(kEnded)) {
    text += fmt::format(
        "  its native stacks, while it runs: gdb -p {0}, py-spy dump --native --pid {0}\n",
        rank.pid);
  }
  return text;
}

// Names the ranks for which those wait that do not know it, as with NCCL.
std::string find_awaited(std::vector<RankActivity>& ranks) {
  constexpr size_t kMaxNames = 8;
  const auto waits = [](const RankActivity& rank) { return rank.state == kWaits; };
  const bool all_known = std::all_of(ranks.begin(), ranks.end(), [&](const RankActivity& rank) {
    return !waits(rank) || rank.waits_for;
  });
  if (all_known) return {};
  const auto stuck = std::find_if_not(ranks.begin(), ranks.end(), waits);
  std::string names;
  size_t shown = 0;
  for (RankActivity& rank : ranks) {
    if (waits(rank) && stuck != ranks.end()) rank.waits_for = stuck->rank;
    if (waits(rank) && rank.operation == ranks.front().operation) continue;
    if (++shown > kMaxNames) continue;
    names += waits(rank) ? fmt::format("; rank {} waits in {}", rank.rank, rank.operation)
                         : fmt::format("; rank {} {}", rank.rank, rank.state);
  }
  if (shown > kMaxNames) names += fmt::format("; and {} more", shown - kMaxNames);
  return names;
}

std::string new_file() {
  std::string path = std::filesystem::temp_directory_path() / "zerorun-stall-XXXXXX.json";
  constexpr int kSuffix = 5;
  const FileDescriptor file(mkstemps(path.data(), kSuffix));
  if (!file) fail<IoError>("cannot make {}: {}", path, std::strerror(errno));
  return path;
}

}  // namespace

std::string state_of(const ProcessIdentity& process) {
  const auto stat = read_process_stat(process.pid);
  if (!stat || stat->start_time != process.start_time) return kEnded;
  switch (stat->state) {
    case 'R':
      return "runs, outside of collectives";
    case 'S':
      return "sleeps, outside of collectives";
    case 'D':
      return "waits for a disk or a driver, outside of collectives";
    case 'T':
    case 't':
      return "is stopped (SIGSTOP or a debugger)";
    default:
      return kEnded;
  }
}

StallReport::StallReport(std::string reason, const GroupOptions& options,
                         std::vector<RankActivity> ranks)
    : reason_(std::move(reason)),
      rank_(options.own_number()),
      world_size_(options.world_size),
      job_size_(options.job_size),
      ranks_(std::move(ranks)) {
  std::sort(ranks_.begin(), ranks_.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
}

std::string StallReport::table() const {
  size_t host_width = 4;
  size_t operation_width = 14;
  for (const RankActivity& rank : ranks_) {
    host_width = std::max(host_width, rank.host.size());
    operation_width = std::max(operation_width, rank.operation.size());
  }
  std::string text = fmt::format("{}\n", reason_);
  const auto line = [&](const auto& number, const auto& host, const auto& pid,
                        const auto& operation, const auto& activity) {
    text += fmt::format("  {:>4}  {:<{}}  {:>7}  {:<{}}  {}\n", number, host, host_width, pid,
                        operation, operation_width, activity);
  };
  line("rank", "host", "pid", "last operation", "now");
  size_t waiting = 0;
  for (const RankActivity& rank : ranks_) {
    if (rank.waits_for && ++waiting > kMaxWaitingLines) continue;
    line(rank.rank, rank.host, rank.pid, rank.operation, activity_text(rank));
  }
  if (waiting > kMaxWaitingLines) {
    text += fmt::format("  and {} more ranks that wait\n", waiting - kMaxWaitingLines);
  }
  const size_t silent =
      static_cast<size_t>(world_size_) - std::min<size_t>(ranks_.size(), world_size_);
  if (world_size_ < job_size_) {
    text += fmt::format("  these are the {} ranks of the group; the job has {}\n", world_size_,
                        job_size_);
  }
  if (silent > 0) text += fmt::format("  {} ranks are on hosts that did not answer\n", silent);
  size_t shown = 0;
  for (const RankActivity& rank : ranks_) {
    if (!rank.waits_for && ++shown <= kMaxStacks) text += stacks_text(rank);
  }
  return text;
}

std::string StallReport::json() const {
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankActivity& rank : ranks_) ranks.push_back(json_of(rank));
  return dump({{"reason", reason_},
               {"world_size", world_size_},
               {"job_size", job_size_},
               {"ranks", ranks}},
              2) +
         '\n';
}

void StallReport::write() const {
  std::string written;
  try {
    const auto given = read_environment("ZERORUN_STALL_FILE");
    const std::string path = given ? *given : new_file();
    write_whole_file(path, json());
    written = fmt::format("  as JSON: {}", path);
  } catch (const std::exception& error) {
    written = fmt::format("  not written as JSON: {}", error.what());
  }
  Logger(rank_, job_size_).log(LogLevel::error, "the job stands still: {}{}", table(), written);
}

std::string encode_activities(const std::vector<RankActivity>& ranks) {
  nlohmann::json entries = nlohmann::json::array();
  const size_t share = kMaxHostStackBytes / std::max<size_t>(1, ranks.size());
  for (const RankActivity& rank : ranks) {
    entries.push_back(json_of(rank, std::min(share, kMaxStackBytes)));
  }
  return dump(entries);
}

std::vector<RankActivity> decode_activities(const std::string& text) {
  try {
    std::vector<RankActivity> ranks;
    for (const nlohmann::json& entry : nlohmann::json::parse(text)) {
      ranks.push_back(activity_of(entry));
    }
    return ranks;
  } catch (const nlohmann::json::exception& error) {
    fail<CommError>("got a host's part of the stall report that cannot be read: {}", error.what());
  }
}

StallInquiry::StallInquiry(const GroupOptions& options, std::string prefix, Parts parts)
    : options_(options),
      prefix_(std::move(prefix)),
      parts_(std::move(parts)),
      answers_(static_cast<size_t>(parts_.count)) {}

void StallInquiry::ask(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  if (!asked_.empty()) return;
  asked_ = reason;
  asked_at_ = Clock::now();
}

bool StallInquiry::has_asked() {
  const std::lock_guard lock(mutex_);
  return !asked_.empty() || !reason_.empty();
}

std::string StallInquiry::look(bool listens) {
  std::string asked;
  {
    const std::lock_guard lock(mutex_);
    asked = asked_;
  }
  if (written_ || (reason_.empty() && !answer(asked, listens))) return {};
  if (!writes(!asked.empty())) return {};
  written_ = true;
  // Without the store nobody else reports, and its loss may already be the job's error.
  if (!store_is_gone_ && !options_.job->error().empty()) return {};
  return write_report();
}

bool StallInquiry::answer(const std::string& asked, bool listens) {
  constexpr std::chrono::seconds kBeat{1};
  if (asked.empty() && (!listens || Clock::now() - listened_ < kBeat)) return false;
  listened_ = Clock::now();
  const std::string question = prefix_ + "stall asked";
  try {
    std::optional<std::string> first = options_.store->find(question);
    if (!first && asked.empty()) return false;
    if (!first) options_.store->set(question, asked);
    answers_own_ = answers_own_ || !asked.empty() || parts_.claim();
    if (answers_own_) {
      options_.store->set(fmt::format("{}stall/{}", prefix_, parts_.own),
                          encode_activities(parts_.own_ranks()));
    }
    reason_ = first.value_or(asked);
  } catch (const CommError&) {
    if (asked.empty()) throw;
    reason_ = asked;
    store_is_gone_ = true;
  }
  answered_ = Clock::now();
  return true;
}

bool StallInquiry::writes(bool asks) {
  if (store_is_gone_) return asks;
  const Clock::time_point now = Clock::now();
  if (options_.rank != 0) {
    const std::lock_guard lock(mutex_);
    return asks && now >= asked_at_ + 2 * kAnswers;
  }
  const bool late = now >= answered_ + kAnswers;
  try {
    return read_answers(late) || late;
  } catch (const CommError&) {
    return true;
  }
}

bool StallInquiry::read_answers(bool all) {
  bool complete = true;
  for (int part = 0; part < parts_.count && (complete || all); ++part) {
    std::optional<std::string>& answer = answers_[static_cast<size_t>(part)];
    if (!answer) answer = options_.store->find(fmt::format("{}stall/{}", prefix_, part));
    complete = complete && answer.has_value();
  }
  return complete;
}

std::string StallInquiry::write_report() {
  std::vector<RankActivity> ranks;
  for (int part = 0; part < parts_.count; ++part) {
    const std::optional<std::string>& answer = answers_[static_cast<size_t>(part)];
    const std::vector<RankActivity> more = answer               ? decode_activities(*answer)
                                           : part == parts_.own ? parts_.own_ranks()
                                                                : parts_.silent_ranks(part);
    ranks.insert(ranks.end(), more.begin(), more.end());
  }
  const std::string names = find_awaited(ranks);
  StallReport(reason_, options_, std::move(ranks)).write();
  return reason_ + names;
}

}  // namespace zerorun
