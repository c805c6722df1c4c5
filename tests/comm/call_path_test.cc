// Few functions are between a reduce_scatter and the loop that adds: this test counts the frames of
// the stack at the first store of that loop, to a page that is not writable yet.
#include "tests/call_path.h"

#include <signal.h>
#include <sys/mman.h>

#include "tests/harness.h"

namespace zerorun::testing::comm_call_path {
namespace {

constexpr int64_t kNumel = 16 << 10;  // of an output; one thread adds it
constexpr size_t kBytes = kNumel * sizeof(float);
constexpr size_t kMaxFrames = 64;

struct Fault {
  void* page = nullptr;
  std::array<void*, kMaxFrames> frames{};
  int count = 0;
};
Fault fault;

void on_fault(int signal, siginfo_t* info, void* /*context*/) {
  auto* const at = static_cast<std::byte*>(info->si_addr);
  auto* const page = static_cast<std::byte*>(fault.page);
  if (at < page || at >= page + kBytes) {
    ::signal(signal, SIG_DFL);
    return;
  }
  fault.count = backtrace(fault.frames.data(), kMaxFrames);
  mprotect(fault.page, kBytes, PROT_READ | PROT_WRITE);
}

// Returns the number of frames from the adding loop to reduce_scatter, both included.
size_t reduce_into_guarded_page(Communicator& comm, TensorView in) {
  const auto stream = make_inline_stream();
  fault.page = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const TensorView out{static_cast<std::byte*>(fault.page), kNumel, DType::fp32};
  struct sigaction action {};
  struct sigaction before {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  const size_t caller = call_path::stack().size();
  sigaction(SIGSEGV, &action, &before);
  comm.reduce_scatter(in, out, Output::overwrite, *stream, "gradients");
  sigaction(SIGSEGV, &before, nullptr);
  EXPECT_EQ(out.as<float>()[kNumel - 1], 2.0F);
  munmap(fault.page, kBytes);
  constexpr size_t kOfSignal = 2;  // the handler, and the system's function that calls it
  EXPECT_GT(static_cast<size_t>(fault.count), caller + kOfSignal) << "no fault";
  return static_cast<size_t>(fault.count) - caller - kOfSignal;
}

TEST(CallPathOfAReduction, IsShort) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a build that inlines less has more frames";
#endif
  run_ranks(2, [](Communicator& comm) {
    std::vector<float> values(2 * kNumel, 1);
    const TensorView in = view_of(std::span<float>(values));
    if (comm.rank() == 0) {
      const size_t frames = reduce_into_guarded_page(comm, in);
      RecordProperty("frames", static_cast<int>(frames));
      EXPECT_LE(frames, 9U);
      return;
    }
    std::vector<float> out(kNumel);
    comm.reduce_scatter(in, view_of(std::span<float>(out)), Output::overwrite,
                        *make_inline_stream(), "gradients");
  });
}

}  // namespace
}  // namespace zerorun::testing::comm_call_path
