#pragma once

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

namespace zerorun {

// Lowers the priority of the calling thread, for background work during training: it gets about a
// tenth of a core that other threads also use, and all of an idle core. A refusal only costs speed.
inline void lower_thread_priority() noexcept {
  constexpr int kNice = 10;  // a weight of 110, where an ordinary thread has 1024
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_BATCH, &none);  // it interrupts nobody when its disk is done
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
}

}  // namespace zerorun
