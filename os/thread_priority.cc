#include "os/thread_priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

namespace zerorun {

namespace {

constexpr int kNice = 10;  // a weight of 110, where an ordinary thread has 1024

}  // namespace

// A refusal only costs speed.
void lower_thread_priority() noexcept {
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_BATCH, &none);  // it interrupts nobody when its disk is done
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
}

}  // namespace zerorun
