#include "comm/rendezvous/patient_get.h"

#include <algorithm>
#include <chrono>

#include "comm/waiting.h"
#include "core/check.h"
#include "core/log.h"
#include "os/socket.h"

namespace zerorun {

namespace {

constexpr std::chrono::milliseconds kFirstLook{50};

}  // namespace

std::string PatientGet::operator()(const std::string& key,
                                   const std::function<std::string()>& what) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point started = Clock::now();
  WaitingNotice notice;
  while (true) {
    const auto waited = Clock::now() - started;
    auto until = std::min<Clock::duration>(options_.timeout, notice.next());
    if (look_ || options_.look) {
      until = std::min(until, waited + std::clamp<Clock::duration>(waited, kFirstLook, kLook));
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - waited);
    try {
      return options_.store->get(key, std::max(left, std::chrono::milliseconds(1)));
    } catch (const Dropped&) {
      throw;
    } catch (const CommError& error) {
      if (options_.look) options_.look();
      if (look_) look_();
      const auto now = Clock::now() - started;
      const double seconds = std::chrono::duration<double>(now).count();
      if (now >= options_.timeout) {
        fail<CommError>("rank {} waited {:.1f} s for {} ({})", options_.own_number(), seconds,
                        what(), error.what());
      }
      // The store may give up before the time, as one that is refused does.
      if (now < until) throw;
      if (notice.due(now)) {
        Logger(options_.own_number(), options_.job_size)
            .log(LogLevel::warning, "rank {} has waited {:.0f} s for {}", options_.own_number(),
                 seconds, what());
      }
    }
  }
}

}  // namespace zerorun
