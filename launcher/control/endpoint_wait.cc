#include "launcher/control/endpoint_wait.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/joined.h"
#include "core/printable.h"
#include "os/address.h"

namespace zerorun {

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
    outcome_ = joined(attempt.failures, ", ", [](const auto& failure) {
      return fmt::format("{}: {}", failure.address, std::strerror(failure.error));
    });
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
