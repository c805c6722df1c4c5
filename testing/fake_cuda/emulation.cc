#include "testing/fake_cuda/emulation.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#elif defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace zerorun::fake {

namespace {

constexpr size_t kStackBytes = size_t{256} << 10;  // touched pages only
constexpr int kMaxThreads = 1024;

// A thread's registers when it left its own stack.
struct Place {
  void* registers[5] = {};
};

[[noreturn, gnu::noinline, gnu::no_sanitize("address", "thread")]] void go_to(Place& place) {
  __builtin_longjmp(place.registers, 1);
}

// swapcontext without its system call, which took most of the time of kernels with barriers.
// `start`: of a stack that was not left yet. Sanitizers must not take the jump for an exception, or
// count calls that do not return.
[[gnu::noinline, gnu::no_sanitize("address", "thread")]] void swap_places(Place& from, Place& to,
                                                                          const ucontext_t* start) {
  if (__builtin_setjmp(from.registers) != 0) return;
  if (start != nullptr) setcontext(start);
  go_to(to);
}

// A stack on which threads of a block run, one after the other: the next one begins there when one
// has ended, and a thread that waits keeps it. Kernels without barriers need one for a block.
struct Fiber {
  Place place;
  void* stack = nullptr;
  bool started = false;
#if defined(__SANITIZE_THREAD__)
  void* tsan = nullptr;
#endif
};

// A thread of a block.
struct Thread {
  enum class State { fresh, runnable, at_block_barrier, at_warp_barrier, ended };

  State state = State::fresh;
  uint64_t exchanged = 0;  // what it gives to its warp
  Fiber* fiber = nullptr;  // where it runs
};

class Scheduler {
 public:
  Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler() {
    for (Fiber& fiber : fibers_) {
      clean(fiber);
      if (fiber.stack != nullptr) munmap(fiber.stack, kStackBytes);
#if defined(__SANITIZE_THREAD__)
      if (fiber.tsan != nullptr) __tsan_destroy_fiber(fiber.tsan);
#endif
    }
  }

  void run_block(dim3 block, const std::function<void()>& body);
  void wait(Thread::State where) {
    Thread& thread = current();
    thread.state = where;
    leave(*thread.fiber);
    show_index();
  }
  Thread& current() { return threads_[static_cast<size_t>(current_)]; }
  int lane() const { return current_ % warpSize; }
  // A thread of the current thread's warp.
  Thread& peer(int lane) {
    return threads_[static_cast<size_t>(current_ / warpSize * warpSize + lane)];
  }
  bool has_peer(int lane) const {
    return lane >= 0 && lane < warpSize && current_ / warpSize * warpSize + lane < count();
  }

 private:
  // For whoever has this memory next: threads may have been left on it.
  static void clean([[maybe_unused]] Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
    if (fiber.stack != nullptr) __asan_unpoison_memory_region(fiber.stack, kStackBytes);
#endif
  }
  static void enter(unsigned high, unsigned low);
  int count() const { return static_cast<int>(threads_.size()); }
  bool is_thread(int number) const { return number >= 0 && number < count(); }
  // To the current thread.
  void show_index() const {
    const auto i = static_cast<unsigned>(current_);
    threadIdx = {i % block_.x, i / block_.x % block_.y, i / block_.x / block_.y};
  }
  void run_threads(Fiber& fiber);
  Fiber& take_fiber();
  void start(Fiber& fiber, ucontext_t& context);
  void resume(Fiber& fiber);
  void leave(Fiber& fiber);
  bool release(int first, int end, Thread::State barrier);
  bool release_barriers();

  std::deque<Fiber> fibers_;
  std::vector<Fiber*> idle_;  // of fibers_
  std::vector<Thread> threads_;
  dim3 block_;
  Place main_;
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr error_;
  int current_ = 0;
  int step_ = 1;  // from a thread to the next: between two barriers in the other order than before
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
  while (true) {  // until its stack goes
    Fiber& fiber = *self->current().fiber;
    self->run_threads(fiber);
    self->idle_.push_back(&fiber);
    self->leave(fiber);
  }
}

// The current thread, and those that follow it and have not begun.
void Scheduler::run_threads(Fiber& fiber) {
  while (true) {
    show_index();
    current().fiber = &fiber;
    current().state = Thread::State::runnable;
    try {
      (*body_)();
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
    current().state = Thread::State::ended;
    ++ended_;
    const int next = current_ + step_;
    if (!is_thread(next) || threads_[static_cast<size_t>(next)].state != Thread::State::fresh) {
      return;
    }
    current_ = next;
  }
}

Fiber& Scheduler::take_fiber() {
  if (idle_.empty()) {
    Fiber& fiber = fibers_.emplace_back();
    void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) throw std::bad_alloc();
    fiber.stack = stack;
#if defined(__SANITIZE_THREAD__)
    fiber.tsan = __tsan_create_fiber(0);
#endif
    idle_.push_back(&fiber);
  }
  Fiber& fiber = *idle_.back();
  idle_.pop_back();
  return fiber;
}

// The threads that are to run begin on it here.
void Scheduler::start(Fiber& fiber, ucontext_t& context) {
  clean(fiber);
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack;
  context.uc_stack.ss_size = kStackBytes;
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&context, reinterpret_cast<void (*)()>(&Scheduler::enter), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  fiber.started = true;
}

void Scheduler::resume(Fiber& fiber) {
  ucontext_t context;
  const bool starts = !fiber.started;
  if (starts) start(fiber, context);
#if defined(__SANITIZE_THREAD__)
  // From here to its return this function calls nothing that is instrumented.
  tsan_main_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber.tsan, 0);
#elif defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&asan_main_, fiber.stack, kStackBytes);
#endif
  swap_places(main_, fiber.place, starts ? &context : nullptr);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(asan_main_, nullptr, nullptr);
#endif
}

// Back to the scheduler; returns when the fiber is resumed.
void Scheduler::leave(Fiber& fiber) {
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(tsan_main_, 0);
#elif defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, main_stack_, main_stack_bytes_);
#endif
  swap_places(fiber.place, main_, nullptr);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &main_stack_, &main_stack_bytes_);
#endif
}

// True when the threads [first, end) have all come to the barrier, and go on. Those of a block that
// have ended need not come.
bool Scheduler::release(int first, int end, Thread::State barrier) {
  const auto threads =
      std::span(threads_).subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
  bool waits = false;
  for (const Thread& thread : threads) {
    const bool excused =
        barrier == Thread::State::at_block_barrier && thread.state == Thread::State::ended;
    if (thread.state != barrier && !excused) return false;
    waits |= thread.state == barrier;
  }
  for (Thread& thread : threads) {
    if (thread.state == barrier) thread.state = Thread::State::runnable;
  }
  return waits;
}

bool Scheduler::release_barriers() {
  bool released = release(0, count(), Thread::State::at_block_barrier);
  for (int first = 0; first < count(); first += warpSize) {
    released |= release(first, std::min(first + warpSize, count()), Thread::State::at_warp_barrier);
  }
  return released;
}

void Scheduler::run_block(dim3 block, const std::function<void()>& body) {
  const auto threads = size_t{block.x} * block.y * block.z;
  if (threads < 1 || threads > kMaxThreads) throw std::logic_error("a block of no valid size");
  threads_.assign(threads, {});
  block_ = block;
  body_ = &body;
  error_ = nullptr;
  ended_ = 0;
  // The threads of a block that ends with an error stay there: their fibers begin anew.
  const auto abandon = [this] {
    for (const Thread& thread : threads_) {
      if (thread.state == Thread::State::fresh || thread.state == Thread::State::ended) continue;
      thread.fiber->started = false;
      idle_.push_back(thread.fiber);
    }
  };
  while (ended_ < count()) {
    step_ = -step_;
    for (current_ = step_ > 0 ? 0 : count() - 1; is_thread(current_); current_ += step_) {
      Thread& thread = current();
      if (thread.state == Thread::State::fresh) thread.fiber = &take_fiber();
      const bool runs =
          thread.state == Thread::State::fresh || thread.state == Thread::State::runnable;
      if (runs) resume(*thread.fiber);
    }
    if (error_) {
      abandon();
      std::rethrow_exception(error_);
    }
    if (ended_ < count() && !release_barriers()) {
      abandon();
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

void block_barrier() { running().wait(Thread::State::at_block_barrier); }

void warp_barrier(unsigned mask) {
  if (mask != 0xffffffffU) throw std::logic_error("a part of a warp waits, which is not emulated");
  running().wait(Thread::State::at_warp_barrier);
}

uint64_t exchange(unsigned mask, uint64_t bits, int lane) {
  Scheduler& block = running();
  block.current().exchanged = bits;
  warp_barrier(mask);
  if (!block.has_peer(lane)) {
    throw std::logic_error("a shuffle reads from a thread that takes no part in it");
  }
  const uint64_t given = block.peer(lane).exchanged;
  warp_barrier(mask);  // nobody gives anew before all have read
  return given;
}

int lane_of_thread() { return running().lane(); }

}  // namespace zerorun::fake
