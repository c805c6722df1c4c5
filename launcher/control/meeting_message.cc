#include "launcher/control/meeting_message.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "core/check.h"
#include "core/parse_number.h"
#include "core/printable.h"
#include "launcher/hosts/address.h"

namespace zerorun {

namespace {

constexpr int64_t kMaxRestarts = 1 << 30;

}  // namespace

std::string encode_slots(const std::vector<int>& slots) {
  return fmt::format("{}", fmt::join(slots, ","));
}

std::vector<int> decode_slots(const std::string& text) {
  std::vector<int> slots;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    const std::optional<int> slot = parse_number(part);
    if (!slot || *slot < 0 || slots.size() >= kMaxRanksPerHost) {
      fail<CommError>("a launcher's message has the slots '{}', expected numbers and commas",
                      printable(text));
    }
    slots.push_back(*slot);
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
  }
  return slots;
}

ControlMessage encode_begin(const Cluster& cluster, const Meeting& meeting, int node_rank) {
  ControlMessage message("begin");
  for (const HostSlots& host : cluster.hosts) {
    message.add("host", host.host).add("slots", encode_slots(host.slots));
  }
  message.add("node_rank", node_rank)
      .add("endpoint_host", cluster.endpoint_host)
      .add("by_hand", cluster.start == RemoteStart::by_hand ? 1 : 0)
      .add("max_restarts", cluster.max_restarts)
      .add("master_addr", meeting.master_addr)
      .add("master_port", meeting.master_port)
      .add("secret", meeting.secret)
      .add("run_id", meeting.run_id)
      .add("restarts", meeting.restarts)
      .add("restart_reason", meeting.restart_reason);
  return message;
}

Cluster decode_cluster(const ControlMessage& begin) {
  const std::vector<std::string> hosts = begin.all("host");
  const std::vector<std::string> slots = begin.all("slots");
  if (hosts.empty() || hosts.size() != slots.size()) {
    fail<CommError>("a launcher's message has {} hosts and {} lists of slots", hosts.size(),
                    slots.size());
  }
  Cluster cluster;
  for (size_t i = 0; i < hosts.size(); ++i) {
    cluster.hosts.push_back({.host = hosts[i], .slots = decode_slots(slots[i])});
  }
  cluster.node_rank =
      static_cast<int>(begin.number("node_rank", 0, static_cast<int64_t>(hosts.size()) - 1));
  const bool by_hand = begin.number("by_hand", 0, 1) == 1;
  cluster.start = by_hand ? RemoteStart::by_hand : RemoteStart::none;
  cluster.coordinates = false;
  cluster.endpoint_host = begin.text("endpoint_host");
  cluster.max_restarts = static_cast<int>(begin.number("max_restarts", 0, kMaxRestarts));
  cluster.min_hosts = cluster.max_hosts = static_cast<int>(hosts.size());
  return cluster;
}

Meeting decode_meeting(const ControlMessage& message) {
  Meeting meeting;
  meeting.master_addr = message.text("master_addr");
  meeting.master_port = static_cast<uint16_t>(message.number("master_port", 0, kMaxPort));
  meeting.secret = message.text("secret");
  meeting.run_id = message.text("run_id");
  meeting.restarts = static_cast<int>(message.number("restarts", 0, kMaxRestarts));
  meeting.restart_reason = message.text("restart_reason");
  return meeting;
}

}  // namespace zerorun
