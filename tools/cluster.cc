#include "tools/cluster.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include "core/check.h"

namespace zerorun {

Cluster parse_cluster(const std::string& text) {
  constexpr int kMost = 1 << 20;
  Cluster cluster;
  std::istringstream parts(text);
  int hosts = 0;
  int gpus = 0;
  bool valid = true;
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    const std::string_view value =
        std::string_view(part).substr(equals == std::string::npos ? part.size() : equals + 1);
    int number = 0;
    const auto [end, error] = std::from_chars(value.begin(), value.end(), number);
    const std::string name = part.substr(0, equals);
    valid &= error == std::errc() && end == value.end() && number >= 1 && number <= kMost;
    if (name == "hosts" && hosts == 0) {
      cluster.hosts = hosts = number;
    } else if (name == "gpus" && gpus == 0) {
      cluster.gpus = gpus = number;
    } else {
      valid = false;
    }
  }
  if (!valid || hosts == 0 || gpus == 0 || int64_t{cluster.hosts} * cluster.gpus > kMost) {
    fail<ConfigError>("--simulate '{}': expected hosts=H,gpus=G, such as hosts=1280,gpus=8", text);
  }
  return cluster;
}

double parse_rate(const std::string& text, const std::string& option) {
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  std::string_view unit(end, static_cast<size_t>(last - end));
  if (unit.ends_with("/s")) unit.remove_suffix(2);
  const double factor = unit == "Gbit"   ? 1e9 / 8
                        : unit == "Mbit" ? 1e6 / 8
                        : unit == "Tbit" ? 1e12 / 8
                        : unit == "GB"   ? 1e9
                        : unit == "MB"   ? 1e6
                        : unit == "TB"   ? 1e12
                                         : 0.0;
  if (error != std::errc() || !(number * factor > 0) || number * factor > 1e18) {
    fail<ConfigError>("{} '{}': expected a rate such as 400Gbit or 450GB/s", option, text);
  }
  return number * factor;
}

Cluster cluster_of(const PlanOptions& options) {
  if (options.link.empty() || options.nvlink.empty()) {
    fail<ConfigError>("--simulate needs --link and --nvlink, such as 400Gbit and 450GB/s");
  }
  if (options.cpu) fail<ConfigError>("--simulate is of GPUs; remove --cpu");
  Cluster cluster = parse_cluster(options.simulate);
  cluster.link = parse_rate(options.link, "--link");
  cluster.nvlink = parse_rate(options.nvlink, "--nvlink");
  cluster.latency = options.latency_us * 1e-6;
  cluster.flops = options.tflops * 1e12;
  return cluster;
}

CallCost cost_of(const StepCall& call, const Cluster& cluster) {
  const int64_t ranks = call.ranks.count;
  const int64_t distance = call.ranks.distance;
  // Ranks of the group on one host, and hosts that it spans.
  const int64_t near = std::clamp<int64_t>(cluster.gpus / distance, 1, ranks);
  const int64_t hosts = (ranks + near - 1) / near;
  const int64_t groups = cluster.gpus / near;  // that share a host
  const bool exchanges = call.op == Collective::all_to_all;
  const int64_t passes = call.op == Collective::all_reduce ? 2 : 1;
  const double sent = static_cast<double>(call.bytes) * static_cast<double>(passes) *
                      static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  CallCost cost;
  cost.messages = passes * (ranks - 1);
  const auto times = [](double bytes, int64_t count) {
    return static_cast<int64_t>(bytes * static_cast<double>(count));
  };
  if (hosts == 1) {
    cost.near_bytes = static_cast<int64_t>(sent);
    cost.seconds =
        static_cast<double>(cost.messages) * cluster.near_latency + sent / cluster.nvlink;
    return cost;
  }
  // Of a ring one rank of a host sends to another host; of an exchange each does.
  const int64_t senders = exchanges ? near : 1;
  const double away = exchanges ? static_cast<double>(call.bytes) *
                                      static_cast<double>(ranks - near) / static_cast<double>(ranks)
                                : sent;
  cost.link_bytes = times(away, senders * groups);
  cost.near_bytes = near > 1 ? static_cast<int64_t>(exchanges ? sent - away : sent) : 0;
  cost.link_messages = (exchanges ? ranks - near : cost.messages) * senders * groups;
  cost.seconds =
      static_cast<double>(cost.messages) * cluster.latency +
      std::max(static_cast<double>(cost.link_bytes) / cluster.link, sent / cluster.nvlink);
  return cost;
}

}  // namespace zerorun
