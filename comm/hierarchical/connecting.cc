#include "comm/hierarchical/connecting.h"

#include <chrono>
#include <exception>
#include <thread>

#include "config/env.h"
#include "core/check.h"
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

std::string waiting_for(const Topology& topology, int peer) {
  return fmt::format("{} to make a connection between their hosts", topology.name_of_rank(peer));
}

// Why a peer will not come; empty: they may. Throws CommError if the store is unreachable.
std::string failure(const GroupOptions& options) {
  try {
    if (options.check_parent) options.check_parent();
  } catch (const CommError& error) {
    return error.what();
  }
  return find_error(options).value_or("");
}

// Why a rank that has waited so long for a connection has to give up; empty: it need not.
std::string problem_after(Clock::duration waited, WaitingNotice& notice,
                          const GroupOptions& options, const std::string& awaited) {
  const double seconds = std::chrono::duration<double>(waited).count();
  try {
    if (std::string problem = failure(options); !problem.empty()) return problem;
  } catch (const CommError& error) {
    return fmt::format("rank {} waited {:.1f} s for {}: {}", options.own_number(), seconds, awaited,
                       error.what());
  }
  if (waited >= options.timeout) {
    return fmt::format(
        "rank {} waited {:.1f} s for {}: is this the network that the hosts share (--interface, "
        "GLOO_SOCKET_IFNAME), and does a firewall let them through?",
        options.own_number(), seconds, awaited);
  }
  if (notice.due(waited)) {
    options.log().log(LogLevel::warning,
                      "rank {} has waited {:.0f} s for {} (--interface, GLOO_SOCKET_IFNAME)",
                      options.own_number(), seconds, awaited);
  }
  return {};
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

std::string Connecting::get(int peer, const std::string& key) const {
  const auto check = [this] {
    if (const auto error = find_error(options)) fail<CommError>("{}", *error);
  };
  try {
    return wait_for_key(
        options, key, [&] { return waiting_for(topology, peer); }, check);
  } catch (const std::exception& error) {
    report_error(options, error.what());  // while this rank still listens: peers are not refused
    throw;
  }
}

void Connecting::run(int peer, const std::function<void()>& connect,
                     const std::function<void()>& cancel) const {
  const Clock::time_point started = Clock::now();
  WaitingNotice notice;
  const std::string awaited = waiting_for(topology, peer);
  std::string problem;  // the watching thread's until it does not look any more
  std::shared_ptr<void> watched = options.job->watch([&] {
    if (problem.empty()) {
      problem = problem_after(Clock::now() - started, notice, options, awaited);
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
  if (error && problem.empty()) problem = failure(options);
  if (!problem.empty()) {
    report_error(options, problem);  // before this rank refuses connections
    fail<CommError>("{}", problem);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace zerorun::hierarchical
