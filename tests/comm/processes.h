#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include <new>

#include "os/file_descriptor.h"
#include "tests/harness.h"

namespace zerorun::testing {

// Memory in which the processes of a test talk to each other and to the test.
struct Shared {
  std::atomic<uint32_t> port{0};
  std::atomic<uint32_t> progress{0};
};

// Blocks until the other side has brought `value` to `least`.
inline void await(const std::atomic<uint32_t>& value, uint32_t least) {
  while (value < least) usleep(100);
}

// Ranks that are processes, forked from the test. Each runs `body` with a communicator over a TCP
// store; what it returns, or the text of what it throws, is its result.
class Processes {
 public:
  using Body = std::function<std::string(Communicator&, Shared&)>;

  Processes(const World& world, const Body& body)
      : memory_(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                     -1, 0)),
        shared_(*new (memory_) Shared) {
    for (int rank = 0; rank < world.ranks; ++rank) {
      std::array<int, 2> ends{};
      if (pipe(ends.data()) != 0) std::terminate();
      results_.emplace_back(ends[0]);
      FileDescriptor result(ends[1]);
      pids_.push_back(fork());
      if (pids_.back() != 0) continue;
      const std::string text = run(rank, world, body);
      _exit(write(result.get(), text.data(), text.size()) < 0 ? 1 : 0);
    }
  }
  Processes(int ranks, const Body& body)
      : Processes({.ranks = ranks, .timeout = std::chrono::minutes(1)}, body) {}
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  ~Processes() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    munmap(memory_, sizeof(Shared));
  }

  Shared& shared() { return shared_; }
  void send(int rank, int signal) { kill(pids_[static_cast<size_t>(rank)], signal); }
  void kill_rank(int rank) { kill(pids_[static_cast<size_t>(rank)], SIGKILL); }
  // Blocks until the rank has ended; empty if it ended without a result.
  std::string result(int rank) {
    std::string text;
    std::array<char, 4096> chunk{};
    ssize_t count = 0;
    while ((count = read(results_[static_cast<size_t>(rank)].get(), chunk.data(), chunk.size())) >
           0) {
      text.append(chunk.data(), static_cast<size_t>(count));
    }
    return text;
  }

 private:
  std::string run(int rank, const World& world, const Body& body) {
#ifdef _OPENMP
    omp_set_num_threads(1);  // its threads do not survive a fork
#endif
    try {
      TcpStoreOptions store;
      store.secret = "test";
      store.serve = rank == 0;
      if (rank != 0) await(shared_.port, 1);
      store.port = static_cast<uint16_t>(shared_.port.load());
      CommunicatorOptions options =
          options_of_rank(rank, world.ranks, make_tcp_store(store), world.timeout);
      if (world.host_of) options.host = world.host_of(rank);
      if (rank == 0) shared_.port = bound_port(*options.store);
      const auto communicator = make_communicator(options);
      options.store.reset();
      return body(*communicator, shared_);
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  void* const memory_;
  Shared& shared_;
  std::vector<pid_t> pids_;
  std::vector<FileDescriptor> results_;
};

}  // namespace zerorun::testing
