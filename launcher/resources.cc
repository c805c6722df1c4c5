#include "launcher/resources.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "core/check.h"

namespace zerorun {

namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_this_host(std::string_view name, const std::string& host) {
  return name == "localhost" || name == "127.0.0.1" || name == host ||
         name == std::string_view(host).substr(0, host.find('.'));
}

// The slots a filter names on this host. `all` = it names the host without slots.
struct Slots {
  bool all = false;
  std::set<int> numbers;
};

Slots parse_filter(std::string_view option, const std::string& text, const HostResources& host) {
  Slots slots;
  for (const std::string_view spec : split(text, '@')) {
    const size_t colon = spec.find(':');
    const std::string_view name = trim(spec.substr(0, colon));
    if (name.empty()) {
      fail<ConfigError>(
          "{} '{}': expected NODE[:SLOT,SLOT...][@NODE...], for example localhost:0,2", option,
          text);
    }
    if (!is_this_host(name, host.name)) {
      fail<ConfigError>(
          "{} '{}' names host '{}': several hosts are not supported yet; this one is 'localhost' "
          "or '{}'",
          option, text, name, host.name);
    }
    if (colon == std::string_view::npos) {
      slots.all = true;
      continue;
    }
    if (trim(spec.substr(colon + 1)).empty()) {
      fail<ConfigError>("{} '{}' names no slot after '{}:'; '{}' alone means all of them", option,
                        text, name, name);
    }
    for (const std::string_view slot : split(spec.substr(colon + 1), ',')) {
      const std::optional<int> number = parse_number(trim(slot));
      if (!number || *number < 0) {
        fail<ConfigError>("{} '{}': slot '{}' is not a number; list the slots, as in localhost:0,2",
                          option, text, slot);
      }
      slots.numbers.insert(*number);
    }
  }
  return slots;
}

// The slots that an --include or --exclude leaves of `available` ones, in order.
std::vector<int> filter_slots(const RankRequest& request, const HostResources& host, int available,
                              std::string_view device) {
  const bool including = !request.include.empty();
  const std::string_view option = including ? "--include" : "--exclude";
  const std::string& text = including ? request.include : request.exclude;
  const Slots slots = parse_filter(option, text, host);
  for (const int slot : slots.numbers) {
    if (slot >= available) {
      fail<ConfigError>("{} '{}' names slot {}, but this host has {} {} slot{} (0 to {})", option,
                        text, slot, available, device, available == 1 ? "" : "s", available - 1);
    }
  }
  std::vector<int> kept;
  for (int slot = 0; slot < available; ++slot) {
    const bool named = slots.all || slots.numbers.contains(slot);
    if (named == including) kept.push_back(slot);
  }
  if (kept.empty()) fail<ConfigError>("{} '{}' leaves no {} to run on", option, text, device);
  return kept;
}

// The requested number of ranks, or nothing when the default is asked for (-1 is DeepSpeed's word
// for it).
std::optional<int> requested_count(const RankRequest& request, const HostResources& host,
                                   bool on_cpu) {
  if (request.count.empty() || request.count == "-1") return std::nullopt;
  if (request.count == "auto") return on_cpu ? std::optional(host.cpus) : std::nullopt;
  if (request.count == "cpu") return host.cpus;
  if (request.count == "gpu") return std::nullopt;
  const std::optional<int> count = parse_number(request.count);
  if (!count || *count < 1 || *count > kMaxRanksPerHost) {
    fail<ConfigError>("--num_gpus '{}': expected a number from 1 to {}, auto, gpu or cpu",
                      request.count, kMaxRanksPerHost);
  }
  return count;
}

Selection select_cpu_ranks(const RankRequest& request, const HostResources& host) {
  Selection selection;
  if (!request.include.empty()) {
    const Slots slots = parse_filter("--include", request.include, host);
    // A slot of a CPU host is just a rank, so any set of slot numbers can be had.
    const size_t count = slots.all ? static_cast<size_t>(host.numa_nodes) : slots.numbers.size();
    selection.ranks = static_cast<int>(std::min<size_t>(count, kMaxRanksPerHost));
  } else if (!request.exclude.empty()) {
    selection.ranks = static_cast<int>(filter_slots(request, host, host.numa_nodes, "CPU").size());
  } else {
    selection.ranks = requested_count(request, host, true).value_or(host.numa_nodes);
  }
  return selection;
}

Selection select_gpu_ranks(const RankRequest& request, const HostResources& host) {
  const int available = static_cast<int>(host.gpus.size());
  Selection selection;
  if (!request.include.empty() || !request.exclude.empty()) {
    for (const int slot : filter_slots(request, host, available, "GPU")) {
      selection.gpus.push_back(host.gpus[static_cast<size_t>(slot)]);
    }
  } else {
    const int count = requested_count(request, host, false).value_or(available);
    if (count > available && host.share_gpus) {
      selection.gpus = host.gpus;
      selection.ranks = count;
      return selection;
    }
    if (count > available) {
      fail<ConfigError>("--num_gpus {}: this host offers {} GPU{} ({})", count, available,
                        available == 1 ? "" : "s", fmt::join(host.gpus, ","));
    }
    selection.gpus.assign(host.gpus.begin(), host.gpus.begin() + count);
  }
  selection.ranks = static_cast<int>(selection.gpus.size());
  return selection;
}

void check_combination(const RankRequest& request) {
  if (!request.include.empty() && !request.exclude.empty()) {
    fail<ConfigError>("--include and --exclude are mutually exclusive; use one of them");
  }
  if (!request.count.empty() && !(request.include.empty() && request.exclude.empty())) {
    fail<ConfigError>("--num_gpus cannot be combined with {}, which already says how many",
                      request.include.empty() ? "--exclude" : "--include");
  }
  if (request.count == "cpu" && request.accelerator == Accelerator::cuda) {
    fail<ConfigError>("--num_gpus cpu contradicts --accelerator cuda");
  }
  if (request.count == "gpu" && request.accelerator == Accelerator::cpu) {
    fail<ConfigError>("--num_gpus gpu contradicts --accelerator cpu");
  }
}

}  // namespace

std::vector<std::string> visible_gpus(const std::optional<std::string>& visible,
                                      int gpus_on_machine) {
  std::vector<std::string> gpus;
  if (!visible) {
    for (int gpu = 0; gpu < gpus_on_machine; ++gpu) gpus.push_back(std::to_string(gpu));
    return gpus;
  }
  if (gpus_on_machine == 0) return gpus;
  for (const std::string_view entry : split(*visible, ',')) {
    const std::string_view name = trim(entry);
    const std::optional<int> index = parse_number(name);
    const bool valid = index ? *index >= 0 && *index < gpus_on_machine
                             : name.starts_with("GPU-") || name.starts_with("MIG-");
    if (!valid) break;
    gpus.emplace_back(name);
  }
  return gpus;
}

Selection select_ranks(const RankRequest& request, const HostResources& host) {
  check_combination(request);
  const bool wants_gpu = request.accelerator == Accelerator::cuda || request.count == "gpu";
  const bool wants_cpu = request.accelerator == Accelerator::cpu || request.count == "cpu";
  if (wants_gpu && host.gpus.empty()) {
    fail<ConfigError>(
        "GPUs are asked for, but this host shows none (no /dev/nvidia*, or CUDA_VISIBLE_DEVICES "
        "hides them); --accelerator cpu runs CPU ranks");
  }
  if (wants_gpu && !host.cuda_problem.empty()) {
    fail<ConfigError>("GPUs are asked for, but {}; --accelerator cpu runs CPU ranks",
                      host.cuda_problem);
  }
  if (!wants_cpu && !host.gpus.empty() && host.cuda_problem.empty()) {
    return select_gpu_ranks(request, host);
  }
  Selection selection = select_cpu_ranks(request, host);
  if (!wants_cpu) {
    selection.note =
        fmt::format("{}: {} CPU rank{}", host.gpus.empty() ? "no GPU found" : host.cuda_problem,
                    selection.ranks, selection.ranks == 1 ? "" : "s");
  }
  return selection;
}

int count_gpus() {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kPrefix = "nvidia";
    if (name.starts_with(kPrefix) && parse_number(name.substr(kPrefix.size()))) ++count;
  }
  return count;
}

}  // namespace zerorun
