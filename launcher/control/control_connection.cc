#include "launcher/control/control_connection.h"

#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>

#include "core/check.h"
#include "core/parse_number.h"
#include "core/printable.h"
#include "launcher/hosts/cluster.h"
#include "launcher/words.h"
#include "zerorun/error.h"

namespace zerorun {

namespace {

constexpr int64_t kMaxRestarts = 1 << 30;

}  // namespace

short ControlConnection::events() const {
  return static_cast<short>(frames_.pending() ? POLLIN | POLLOUT : POLLIN);
}

void ControlConnection::send(const ControlMessage& message) {
  if (open()) frames_.send(message.encode());
}

void ControlConnection::service() {
  frames_.send_some();
  frames_.receive();
}

std::optional<ControlMessage> ControlConnection::next() {
  try {
    const auto frame = frames_.next();
    if (!frame) return std::nullopt;
    heard_ = Clock::now();
    return ControlMessage::decode(*frame);
  } catch (const CommError&) {
    close();  // not a launcher
    return std::nullopt;
  }
}

void ControlConnection::beat(Clock::time_point now) {
  if (now - beaten_ < kBeat) return;
  beaten_ = now;
  send(ControlMessage("alive"));
}

void ControlConnection::flush(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (open() && frames_.pending() && Clock::now() < deadline) {
    pollfd room = {fd(), POLLOUT, 0};
    poll(&room, 1, static_cast<int>(kBeat.count()));
    frames_.send_some();
  }
}

ControlMessage& ControlMessage::add(std::string name, std::string value) {
  fields_.emplace_back(std::move(name), std::move(value));
  return *this;
}

ControlMessage& ControlMessage::add(std::string name, int64_t value) {
  return add(std::move(name), std::to_string(value));
}

ControlMessage& ControlMessage::add_all(const std::string& name,
                                        const std::vector<std::string>& values) {
  for (const std::string& value : values) add(name, value);
  return *this;
}

std::string ControlMessage::text(std::string_view name) const {
  const auto field =
      std::ranges::find_if(fields_, [name](const auto& one) { return one.first == name; });
  return field == fields_.end() ? std::string() : field->second;
}

int64_t ControlMessage::number(std::string_view name, int64_t low, int64_t high) const {
  const std::string value = text(name);
  const std::optional<int64_t> number = parse_number(value, low, high);
  if (!number) {
    fail<CommError>("a launcher's message '{}' has {}='{}', expected a number from {} to {}",
                    printable(kind_), name, printable(value), low, high);
  }
  return *number;
}

std::vector<std::string> ControlMessage::all(std::string_view name) const {
  std::vector<std::string> values;
  for (const auto& [field, value] : fields_) {
    if (field == name) values.push_back(value);
  }
  return values;
}

std::string ControlMessage::encode() const {
  std::string bytes = frame_of(kind_);
  for (const auto& [name, value] : fields_) bytes += frame_of(name) + frame_of(value);
  return bytes;
}

ControlMessage ControlMessage::decode(const std::string& bytes) {
  size_t position = 0;  // take_frame() would move the rest to the front for every field
  const auto take = [&]() -> std::string {
    constexpr size_t kLengthBytes = 4;
    if (bytes.size() - position < kLengthBytes) fail<CommError>("a launcher's message is cut off");
    size_t length = 0;
    for (size_t i = 0; i < kLengthBytes; ++i) {
      length |= static_cast<size_t>(static_cast<unsigned char>(bytes[position + i])) << (8 * i);
    }
    position += kLengthBytes;
    if (length > bytes.size() - position) fail<CommError>("a launcher's message is cut off");
    position += length;
    return bytes.substr(position - length, length);
  };
  ControlMessage message(take());
  while (position < bytes.size()) {
    std::string name = take();
    message.add(std::move(name), take());
  }
  return message;
}

std::string encode_slots(const std::vector<int>& slots) {
  return fmt::format("{}", fmt::join(slots, ","));
}

std::vector<int> decode_slots(const std::string& text) {
  std::vector<int> slots;
  if (text.empty()) return slots;
  for (const std::string_view part : split(text, ',')) {
    const std::optional<int> slot = parse_number(part);
    if (!slot || *slot < 0 || slots.size() >= kMaxRanksPerHost) {
      fail<CommError>("a launcher's message has the slots '{}', expected numbers and commas",
                      printable(text));
    }
    slots.push_back(*slot);
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
  cluster.endpoint_host = begin.text("endpoint_host");
  cluster.max_restarts = static_cast<int>(begin.number("max_restarts", 0, kMaxRestarts));
  cluster.min_hosts = static_cast<int>(hosts.size());
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
