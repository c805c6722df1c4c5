#include "comm/waiting.h"

#include <algorithm>

#include "core/check.h"
#include "os/socket.h"

namespace zerorun {

namespace {

constexpr std::chrono::milliseconds kFirstKeyCheck{50};

std::string list_of(const std::vector<int>& ranks) {
  constexpr size_t kMax = 16;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size() && i < kMax; ++i) {
    text += fmt::format("{} {}", i == 0 ? "" : ",", ranks[i]);
  }
  if (ranks.size() > kMax) text += fmt::format(" and {} more", ranks.size() - kMax);
  return text;
}

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
        options.log().log(LogLevel::warning, "rank {} has waited {:.0f} s for {}",
                          options.own_number(), seconds, what());
      }
    }
  }
}

void answer_all(const GroupOptions& options, const std::string& name, const std::string& value,
                const std::string& purpose, std::string& answer,
                const std::function<bool(const std::string& value)>& take,
                const std::function<void()>& check) {
  const auto key = [&](int rank) { return fmt::format("{}/{}", name, rank); };
  const std::string answer_key = name + "/all";
  options.store->set(key(options.rank), value);
  if (options.rank != 0) {
    const auto what = [&] {
      return fmt::format("all {} ranks {}: rank 0 knows which are missing", options.world_size,
                         purpose);
    };
    answer = wait_for_key(options, answer_key, what, check);
    return;
  }
  bool goes_on = true;
  for (int rank = 0; goes_on && rank < options.world_size; ++rank) {
    const auto missing = [&] {
      std::vector<int> absent;
      for (int peer = rank; peer < options.world_size; ++peer) {
        if (!options.store->find(key(peer))) absent.push_back(options.number(peer));
      }
      return fmt::format("{} of {} {}{}", list_of(absent), options.world_size, purpose,
                         options.master_addr.empty()
                             ? ""
                             : " at " + options.master_addr + " (MASTER_ADDR, MASTER_PORT)");
    };
    goes_on = take(wait_for_key(options, key(rank), missing, check));
  }
  options.store->set(answer_key, answer);
}

}  // namespace zerorun
