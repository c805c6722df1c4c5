#include "tests/cuda/fake/emulation.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <array>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#elif defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace zerorun::fake {

namespace {

constexpr size_t kStackBytes = size_t{256} << 10;  // touched pages only
constexpr int kMostThreads = 1024;

// A thread of a block: a stack, and where it waits.
struct Fiber {
  enum class State { runnable, at_block_barrier, at_warp_barrier, ended };

  ucontext_t context{};
  void* stack = nullptr;
  State state = State::ended;
  unsigned mask = 0;       // of the warp barrier where it waits
  uint64_t exchanged = 0;  // what it gives to its warp
  uint3 index{};
#if defined(__SANITIZE_THREAD__)
  void* tsan = nullptr;
#endif
};

class Scheduler {
 public:
  Scheduler() : fibers_(kMostThreads) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler() {
    for (Fiber& fiber : fibers_) {
      if (fiber.stack != nullptr) munmap(fiber.stack, kStackBytes);
    }
  }

  void run_block(dim3 block, const std::function<void()>& body);
  void wait(Fiber::State where, unsigned mask) {
    Fiber& fiber = fibers_[static_cast<size_t>(current_)];
    fiber.state = where;
    fiber.mask = mask;
    leave(fiber);
  }
  Fiber& current() { return fibers_[static_cast<size_t>(current_)]; }
  int lane() const { return current_ % warpSize; }
  // Of the current fiber's warp.
  Fiber& peer(int lane) {
    return fibers_[static_cast<size_t>(current_ / warpSize * warpSize + lane)];
  }
  bool has_peer(int lane) const {
    return lane >= 0 && lane < warpSize && current_ / warpSize * warpSize + lane < threads_;
  }

 private:
  static void enter(unsigned high, unsigned low);
  void start(Fiber& fiber, int thread, dim3 block);
  void resume(Fiber& fiber);
  void leave(Fiber& fiber);
  bool release_barriers();
  bool release_warp(int first);

  std::vector<Fiber> fibers_;
  ucontext_t main_{};
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr error_;
  int threads_ = 0;
  int current_ = 0;
  int ended_ = 0;
#if defined(__SANITIZE_THREAD__)
  void* tsan_main_ = nullptr;
#elif defined(__SANITIZE_ADDRESS__)
  void* asan_main_ = nullptr;  // of the main context while a fiber runs
  const void* main_stack_ = nullptr;
  size_t main_stack_bytes_ = 0;
#endif
};

thread_local std::unique_ptr<Scheduler> scheduler;

Scheduler& running() {
  if (!scheduler) scheduler = std::make_unique<Scheduler>();
  return *scheduler;
}

void Scheduler::enter(unsigned high, unsigned low) {
  auto* self = reinterpret_cast<Scheduler*>(uintptr_t{high} << 32 | low);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->main_stack_, &self->main_stack_bytes_);
#endif
  try {
    (*self->body_)();
  } catch (...) {
    if (!self->error_) self->error_ = std::current_exception();
  }
  Fiber& fiber = self->current();
  fiber.state = Fiber::State::ended;
  ++self->ended_;
  self->leave(fiber);
}

void Scheduler::start(Fiber& fiber, int thread, dim3 block) {
  if (fiber.stack == nullptr) {
    fiber.stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fiber.stack == MAP_FAILED) {
      fiber.stack = nullptr;
      throw std::bad_alloc();
    }
  }
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = &main_;
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Scheduler::enter), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  fiber.state = Fiber::State::runnable;
  const auto i = static_cast<unsigned>(thread);
  fiber.index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
#if defined(__SANITIZE_THREAD__)
  fiber.tsan = __tsan_create_fiber(0);
#endif
}

void Scheduler::resume(Fiber& fiber) {
  threadIdx = fiber.index;
#if defined(__SANITIZE_THREAD__)
  tsan_main_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber.tsan, 0);
#elif defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&asan_main_, fiber.stack, kStackBytes);
#endif
  swapcontext(&main_, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(asan_main_, nullptr, nullptr);
#elif defined(__SANITIZE_THREAD__)
  if (fiber.state == Fiber::State::ended) __tsan_destroy_fiber(fiber.tsan);
#endif
}

// Back to the scheduler; returns when the fiber is resumed.
void Scheduler::leave(Fiber& fiber) {
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(tsan_main_, 0);
#elif defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  const bool ends = fiber.state == Fiber::State::ended;
  __sanitizer_start_switch_fiber(ends ? nullptr : &fake_stack, main_stack_, main_stack_bytes_);
#endif
  swapcontext(&fiber.context, &main_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &main_stack_, &main_stack_bytes_);
#endif
}

// True when all threads that the barrier is for have come, and go on.
bool Scheduler::release_warp(int first) {
  bool released = false;
  for (int lane = 0; lane < warpSize && first + lane < threads_; ++lane) {
    Fiber& fiber = fibers_[static_cast<size_t>(first + lane)];
    if (fiber.state != Fiber::State::at_warp_barrier) continue;
    const unsigned mask = fiber.mask;
    bool complete = (mask >> lane & 1U) != 0;
    for (int other = 0; other < warpSize && first + other < threads_; ++other) {
      const Fiber& peer = fibers_[static_cast<size_t>(first + other)];
      if ((mask >> other & 1U) == 0) continue;
      complete = complete && peer.state == Fiber::State::at_warp_barrier && peer.mask == mask;
    }
    if (!complete) continue;
    for (int other = 0; other < warpSize && first + other < threads_; ++other) {
      if ((mask >> other & 1U) == 0) continue;
      fibers_[static_cast<size_t>(first + other)].state = Fiber::State::runnable;
    }
    released = true;
  }
  return released;
}

bool Scheduler::release_barriers() {
  int waiting = 0;
  for (int i = 0; i < threads_; ++i) {
    waiting += fibers_[static_cast<size_t>(i)].state == Fiber::State::at_block_barrier ? 1 : 0;
  }
  if (waiting > 0 && waiting + ended_ == threads_) {
    for (int i = 0; i < threads_; ++i) {
      Fiber& fiber = fibers_[static_cast<size_t>(i)];
      if (fiber.state == Fiber::State::at_block_barrier) fiber.state = Fiber::State::runnable;
    }
    return true;
  }
  bool released = false;
  for (int first = 0; first < threads_; first += warpSize) released |= release_warp(first);
  return released;
}

void Scheduler::run_block(dim3 block, const std::function<void()>& body) {
  threads_ = static_cast<int>(block.x * block.y * block.z);
  if (threads_ < 1 || threads_ > kMostThreads) throw std::logic_error("a block of no valid size");
  body_ = &body;
  error_ = nullptr;
  ended_ = 0;
  for (int i = 0; i < threads_; ++i) start(fibers_[static_cast<size_t>(i)], i, block);
  while (ended_ < threads_) {
    for (current_ = 0; current_ < threads_; ++current_) {
      Fiber& fiber = current();
      if (fiber.state == Fiber::State::runnable) resume(fiber);
    }
    if (error_) std::rethrow_exception(error_);
    if (ended_ < threads_ && !release_barriers()) {
      throw std::logic_error("threads of a block wait for each other at different barriers");
    }
  }
}

}  // namespace

void run_grid(dim3 grid, dim3 block, const std::function<void()>& body) {
  gridDim = grid;
  blockDim = block;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        running().run_block(block, body);
      }
    }
  }
}

void block_barrier() { running().wait(Fiber::State::at_block_barrier, 0); }

void warp_barrier(unsigned mask) { running().wait(Fiber::State::at_warp_barrier, mask); }

uint64_t exchange(unsigned mask, uint64_t bits, int lane) {
  Scheduler& block = running();
  block.current().exchanged = bits;
  warp_barrier(mask);
  if (!block.has_peer(lane) || (mask >> lane & 1U) == 0) {
    throw std::logic_error("a shuffle reads from a thread that takes no part in it");
  }
  const uint64_t given = block.peer(lane).exchanged;
  warp_barrier(mask);  // nobody gives anew before all have read
  return given;
}

unsigned ballot(unsigned mask, bool vote) {
  Scheduler& block = running();
  block.current().exchanged = vote ? 1 : 0;
  warp_barrier(mask);
  unsigned votes = 0;
  for (int lane = 0; lane < warpSize; ++lane) {
    if ((mask >> lane & 1U) != 0 && block.has_peer(lane) && block.peer(lane).exchanged != 0) {
      votes |= 1U << lane;
    }
  }
  warp_barrier(mask);
  return votes;
}

int lane_of_thread() { return running().lane(); }

}  // namespace zerorun::fake
