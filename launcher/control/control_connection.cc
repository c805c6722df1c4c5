#include "launcher/control/control_connection.h"

#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/parse_number.h"
#include "core/printable.h"
#include "launcher/hosts/cluster.h"
#include "launcher/words.h"
#include "os/address.h"
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

EndpointWait::EndpointWait(std::string host, uint16_t port, Limit limit)
    : host_(std::move(host)), port_(port), limit_(limit) {}

std::string EndpointWait::place() const { return fmt::format("{} port {}", host_, port_); }

FileDescriptor EndpointWait::try_once() {
  constexpr std::chrono::milliseconds kTime{500};
  ConnectionAttempt attempt;
  Finding found = Finding::no_name;
  ++attempts_;
  try {
    attempt = attempt_to_connect(host_, port_, kTime);
    if (attempt.socket) return std::move(attempt.socket);
    found = judge(attempt);
    outcome_.clear();
    for (const auto& [address, error] : attempt.failures) {
      outcome_ +=
          fmt::format("{}{}: {}", outcome_.empty() ? "" : ", ", address, std::strerror(error));
    }
  } catch (const CommError& error) {
    outcome_ = error.what();
  }
  if (found != finding_) found_at_ = Clock::now();
  finding_ = found;
  return {};
}

// By the address that looks best: one may be of a network that this host is not part of.
EndpointWait::Finding EndpointWait::judge(const ConnectionAttempt& attempt) const {
  const auto any = [&attempt](int error) {
    return std::ranges::any_of(attempt.failures,
                               [error](const auto& failure) { return failure.error == error; });
  };
  if (any(ECONNREFUSED)) return is_own_address(host_) ? Finding::refused_here : Finding::refused;
  const bool no_route = std::ranges::all_of(
      attempt.failures, [](const auto& failure) { return failure.error == ENETUNREACH; });
  return no_route ? Finding::no_route : Finding::silence;
}

std::string EndpointWait::advice() const {
  switch (finding_) {
    case Finding::none:
      return {};
    case Finding::refused:
      return "that host is there, but no launcher serves the port: start the same command there, "
             "with --node_rank 0";
    case Finding::refused_here:
      return fmt::format(
          "{} is this host itself, and no launcher serves the port here: if this is the first host "
          "of the job, start its launcher with --node_rank 0; otherwise give --master_addr an "
          "address of the first host at which this one reaches it",
          host_);
    case Finding::no_route:
      return fmt::format(
          "this host has no route there; its own addresses are {}: give --master_addr an address "
          "of the first host in a network of this one, the same on all hosts",
          list_own_addresses());
    case Finding::no_name:
      return "give --master_addr the number of the first host's address, or add the name to DNS or "
             "/etc/hosts";
    case Finding::silence:
      return fmt::format(
          "nothing answers: the host is down, has another address, or a firewall drops the port. "
          "Open TCP port {} of the first host, and those of its ranks; `ping {}` from here, and "
          "`ip addr` there",
          port_, host_);
  }
  return {};
}

std::optional<std::string> EndpointWait::note() {
  if (Clock::now() - began_ <= next_note_) return std::nullopt;
  next_note_ *= 2;
  return fmt::format("waiting for the launcher of the first host at {} for {:.0f} s ({}): {}",
                     place(), seconds(), outcome_, advice());
}

void EndpointWait::check_limit() const {
  const bool hopeless = finding_ == Finding::refused_here || finding_ == Finding::no_route;
  const bool silent = finding_ == Finding::silence;
  // A name may be unknown until its host is ready, as that of a pod in Kubernetes: no bound.
  const auto now = Clock::now();
  const bool pointless = !limit_.given && ((hopeless && now - found_at_ > kHopelessWait) ||
                                           (silent && now - found_at_ > kSilentWait));
  if (!pointless && now - began_ <= limit_.time) return;
  fail<CommError>(
      "no launcher of the first host at {} for {:.0f} s; {} attempts, the last one: {}. {}{}",
      place(), seconds(), attempts_, outcome_, advice(),
      pointless ? ". --rdzv_conf timeout=SECONDS waits longer" : "");
}

OtherCoordinator ask_other_coordinator(const std::vector<std::string>& addresses, uint16_t port,
                                       const ControlMessage& introduction) {
  using std::chrono::milliseconds;
  constexpr milliseconds kTime{800};
  constexpr milliseconds kTimeToConnect{400};
  constexpr size_t kMaxAnswer = size_t{1} << 16;
  OtherCoordinator other;
  const Deadline deadline = std::chrono::steady_clock::now() + kTime;
  FileDescriptor socket;
  try {
    for (const std::string& address : addresses) {
      const auto left =
          std::chrono::floor<milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0) return other;
      socket = attempt_to_connect(address, port, std::min(left, kTimeToConnect)).socket;
      if (socket) break;
    }
    if (!socket) return other;
    other.reached = true;
    send_frame(socket, introduction.encode(), deadline);
    const auto answer = ControlMessage::decode(receive_frame(socket, kMaxAnswer, deadline));
    if (answer.is("denied")) other.denial = printable_lines(answer.text("why"));
  } catch (const CommError&) {  // nobody, another program, or this one, which waits here
    return other;
  }
  return other;
}

}  // namespace zerorun
