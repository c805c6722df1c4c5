#include "zero/timeline/straggler_watch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "comm/agreement.h"
#include "os/process_identity.h"

namespace zerorun {

namespace {

constexpr int64_t kLogEvery_ns = 60'000'000'000;
constexpr size_t kNameWords = 8;  // of a host's name, which is cut

std::vector<std::string> names_of_hosts(Communicator& job, Stream& stream) {
  const std::string own = host_name();
  if (job.local_world_size() == job.world_size()) return {own};
  std::array<int64_t, kNameWords> words{};
  std::memcpy(words.data(), own.data(), std::min(own.size(), sizeof(words) - 1));
  const std::vector<int64_t> all = Agreement(job, stream).gather(words, "names of the hosts");
  std::vector<std::string> names;
  for (size_t at = 0; at < all.size(); at += kNameWords) {
    names.emplace_back(reinterpret_cast<const char*>(&all[at]));
  }
  return names;
}

// Once a minute in this process.
bool is_log_due() {
  static std::atomic<int64_t> logged_ns{0};  // 0: never
  const int64_t now = steady_ns();
  int64_t last = logged_ns.load();
  if (last != 0 && now - last < kLogEvery_ns) return false;
  return logged_ns.compare_exchange_strong(last, now);
}

}  // namespace

StragglerWatch::StragglerWatch(Communicator& job, Device& device)
    : log_(job.rank(), job.world_size()),
      is_first_(job.rank() == 0),
      hosts_(names_of_hosts(job, device.inline_stream())),
      search_(device.is_host()) {}

void StragglerWatch::add(std::span<const int64_t> words) {
  if (!is_first_) return;
  search_.add(words, 1e-9 * static_cast<double>(clock_.step_ns()));
  if (!search_.found()) return;
  if (is_log_due()) log_.warning("{}; see docs/slow.md", report().found->text());
}

StragglerReport StragglerWatch::report() const {
  const auto& found = search_.found();
  if (!found) return {last_, std::nullopt};
  const size_t host = hosts_.size() == 1 ? 0 : static_cast<size_t>(found->rank);
  return {last_, Straggler{found->rank, hosts_[host], found->share, found->cause}};
}

}  // namespace zerorun
