#include "comm/waiting.h"

#include <algorithm>

#include "core/check.h"
#include "core/log.h"
#include "os/socket.h"

namespace zerorun {

namespace {

constexpr std::chrono::milliseconds kFirstKeyCheck{50};

}  // namespace

std::string wait_for_key(const GroupOptions& options, const std::string& key,
                         const std::function<std::string()>& what,
                         const std::function<void()>& check) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point started = Clock::now();
  WaitingNotice notice;
  while (true) {
    const auto waited = Clock::now() - started;
    auto until = std::min<Clock::duration>(options.timeout, notice.next());
    if (check || options.check_parent) {
      until = std::min(
          until, waited + std::clamp<Clock::duration>(waited, kFirstKeyCheck, kKeyCheckInterval));
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - waited);
    try {
      return options.store->get(key, std::max(left, std::chrono::milliseconds(1)));
    } catch (const Dropped&) {
      throw;
    } catch (const CommError& error) {
      if (options.check_parent) options.check_parent();
      if (check) check();
      const auto now = Clock::now() - started;
      const double seconds = std::chrono::duration<double>(now).count();
      if (now >= options.timeout) {
        fail<CommError>("rank {} waited {:.1f} s for {} ({})", options.own_number(), seconds,
                        what(), error.what());
      }
      // The store may give up before the time, as one that is refused does.
      if (now < until) throw;
      if (notice.due(now)) {
        Logger(options.own_number(), options.job_size)
            .log(LogLevel::warning, "rank {} has waited {:.0f} s for {}", options.own_number(),
                 seconds, what());
      }
    }
  }
}

}  // namespace zerorun
