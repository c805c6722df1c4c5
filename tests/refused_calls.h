#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <initializer_list>
#include <vector>

namespace zerorun::testing {

enum class RefusedTo : unsigned { this_thread = 0, all_threads = SECCOMP_FILTER_FLAG_TSYNC };

// From here on these system calls fail with `error`, for the rest of the life of those they are
// refused to and of threads that they start: as in a container that forbids them, or on a disk that
// has become full. False where this system does not allow that.
inline bool refuse_calls(std::initializer_list<unsigned> numbers, unsigned error, RefusedTo who) {
  std::vector<sock_filter> filter = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned number : numbers) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, static_cast<unsigned>(who), &program) == 0;
}

}  // namespace zerorun::testing
