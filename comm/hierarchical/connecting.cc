#include "comm/hierarchical/connecting.h"

#include <chrono>
#include <exception>
#include <thread>

#include "config/env.h"
#include "core/check.h"
#include "core/log.h"
#include "os/address.h"

namespace zerorun::hierarchical {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kConnectLook{100};
// Longer than the time between two looks of a rank that waits for the store.
constexpr std::chrono::seconds kHearing{2};
static_assert(kHearing > kKeyCheckInterval);

std::string own_address(const CommunicatorOptions& options, const std::string& name) {
  try {
    std::string address = own_address_of(name, options.master_addr);
    const bool far = !options.master_addr.empty() && !is_loopback(options.master_addr);
    if (far && is_loopback(address)) {
      fail<CommError>("'{}' has the address {}, which every host has for itself", name, address);
    }
    return address;
  } catch (const CommError& error) {
    fail<CommError>(
        "rank {} cannot exchange data with other hosts: {}; expected an interface or an address of "
        "this host (--interface, GLOO_SOCKET_IFNAME)",
        options.rank, error.what());
  }
}

}  // namespace

std::string choose_address(const CommunicatorOptions& options) {
  std::string name = options.interface;
  if (name.empty()) name = read_environment("GLOO_SOCKET_IFNAME").value_or("");
  name = name.substr(0, name.find(','));  // PyTorch's may be a list
  if (!name.empty()) return own_address(options, name);
  if (options.master_addr.empty()) return "127.0.0.1";
  return own_address_towards(options.master_addr);
}

std::string error_key(const GroupOptions& options) { return options.name + "/error/0"; }

std::optional<std::string> find_error(const GroupOptions& options) {
  return options.store->find(error_key(options));
}

void report_error(const GroupOptions& options, const std::string& error) noexcept {
  try {
    if (find_error(options)) return;
    options.store->set(error_key(options), error);
    if (options.rank == 0) std::this_thread::sleep_for(kHearing);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the store is gone, which tells
  }
}

std::string Connecting::waiting_for(int peer) const {
  return fmt::format("{} to make a connection between their hosts", topology_.name_of_rank(peer));
}

std::string Connecting::get(int peer, const std::string& key) const {
  const auto check = [this] {
    if (const auto error = find_error(options_)) fail<CommError>("{}", *error);
  };
  try {
    return wait_for_key(
        options_, key, [&] { return waiting_for(peer); }, check);
  } catch (const std::exception& error) {
    report_error(options_, error.what());  // while this rank still listens: peers are not refused
    throw;
  }
}

std::string Connecting::failure() const {
  try {
    if (options_.check_parent) options_.check_parent();
  } catch (const CommError& error) {
    return error.what();
  }
  return find_error(options_).value_or("");
}

std::string Connecting::problem_after(Clock::duration waited, WaitingNotice& notice,
                                      int peer) const {
  const double seconds = std::chrono::duration<double>(waited).count();
  try {
    if (std::string problem = failure(); !problem.empty()) return problem;
  } catch (const CommError& error) {
    return fmt::format("rank {} waited {:.1f} s for {}: {}", options_.own_number(), seconds,
                       waiting_for(peer), error.what());
  }
  if (waited >= options_.timeout) {
    return fmt::format(
        "rank {} waited {:.1f} s for {}: is this the network that the hosts share (--interface, "
        "GLOO_SOCKET_IFNAME), and does a firewall let them through?",
        options_.own_number(), seconds, waiting_for(peer));
  }
  if (notice.due(waited)) {
    Logger(options_.own_number(), options_.job_size)
        .log(LogLevel::warning,
             "rank {} has waited {:.0f} s for {} (--interface, GLOO_SOCKET_IFNAME)",
             options_.own_number(), seconds, waiting_for(peer));
  }
  return {};
}

void Connecting::run(int peer, const std::function<void()>& connect,
                     const std::function<void()>& cancel) const {
  const Clock::time_point started = Clock::now();
  WaitingNotice notice;
  std::string problem;  // the watching thread's until it does not look any more
  std::shared_ptr<void> watched = options_.job->watch([&] {
    if (problem.empty()) {
      problem = problem_after(Clock::now() - started, notice, peer);
      if (!problem.empty()) cancel();
    }
    return kConnectLook;
  });
  std::exception_ptr error;
  try {
    connect();
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  watched.reset();
  // A peer that has failed refuses connections: its own error says why.
  if (error && problem.empty()) problem = failure();
  if (!problem.empty()) {
    report_error(options_, problem);  // before this rank refuses connections
    fail<CommError>("{}", problem);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace zerorun::hierarchical
