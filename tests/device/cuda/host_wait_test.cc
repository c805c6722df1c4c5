// CUDA streams that wait for events of the host.
#include <cuda.h>

#include "device/cpu/cpu_stream.h"
#include "device/cuda/cuda_device.h"
#include "tests/common.h"
#include "tests/device/cuda/fake_cuda_test.h"
#include "tests/gate.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

using testing::Gate;

class HostWaitTest : public testing::FakeCudaTest {};

// `first` is busy, so `last` is the first to wait for the host; what it waits for needs `first`.
struct Chain {
  explicit Chain(CudaDevice& device)
      : first(device.make_stream("first")), last(device.make_stream("last")) {
    fake::submit(cuda_stream(*first).handle(), [this] { first_may_go.pass(); });
  }

  std::unique_ptr<Stream> first;
  std::unique_ptr<Stream> last;
  Gate first_may_go;
};

// Why streams do not wait in host functions: one that waits holds up all others.
TEST_F(HostWaitTest, AHostFunctionThatWaitsKeepsOthersFromRunning) {
  CudaDevice device(0, 0);
  Chain chain(device);
  struct Function {
    Gate entered;
    Gate may_return;
    std::atomic<bool> returned{false};
    static void run(void* self) {
      auto* const function = static_cast<Function*>(self);
      function->entered.open();
      function->may_return.pass();
      function->returned = true;
    }
  } of_first;
  Function of_last;
  cudaLaunchHostFunc(cuda_stream(*chain.first).handle(), Function::run, &of_first);
  cudaLaunchHostFunc(cuda_stream(*chain.last).handle(), Function::run, &of_last);
  of_last.entered.pass();
  of_first.may_return.open();
  chain.first_may_go.open();
  // `of_last` waiting for `of_first` would be for ever.
  EXPECT_FALSE(of_first.returned);
  of_last.may_return.open();
  chain.first->synchronize();
  chain.last->synchronize();
  EXPECT_TRUE(of_first.returned);
}

TEST_F(HostWaitTest, StreamsThatWaitForEachOtherThroughTheHostGoOn) {
  CudaDevice device(0, 0);
  const auto worker = make_worker_stream("worker");
  const auto other = make_worker_stream("other");
  for (int round = 0; round < 50; ++round) {
    Chain chain(device);
    Gate gate;
    other->submit([&] { gate.pass(); });
    chain.first->wait(other->record());
    worker->wait(chain.first->record());
    chain.last->wait(worker->record());
    gate.open();
    chain.first_may_go.open();
    chain.last->synchronize();
  }
  EXPECT_EQ(fake_.counts()["cuStreamWaitValue32"], 100);
}

TEST_F(HostWaitTest, WorkComesAfterTheEventAndTheCallerDoesNotWait) {
  CudaDevice device(0, 0);
  const auto worker = make_worker_stream("worker");
  const Buffer pinned = device.allocate_pinned(4);
  const Buffer there = device.allocate(4, MemoryCategory::other);
  auto* const word = reinterpret_cast<int32_t*>(pinned.data());
  const TensorView view = view_of(there, DType::uint8, 4);
  Gate gate;
  *word = 1;
  worker->submit([&] {
    gate.pass();
    *word = 2;
  });
  Stream& stream = device.inline_stream();
  stream.wait(worker->record());
  device.upload(stream, pinned.data(), view);
  const Event done = stream.record();
  EXPECT_FALSE(done.ready());
  gate.open();
  device.download(stream, view, word);
  stream.synchronize();
  EXPECT_EQ(*word, 2);
}

TEST_F(HostWaitTest, FlagsAreUsedAgain) {
  CudaDevice device(0, 0);
  const auto worker = make_worker_stream("worker");
  const int pages = fake_.counts()["cudaHostAlloc"];
  for (int i = 0; i < 3000; ++i) {
    Gate gate;
    worker->submit([&] { gate.pass(); });
    device.inline_stream().wait(worker->record());
    gate.open();
    worker->synchronize();
  }
  device.inline_stream().synchronize();
  EXPECT_EQ(fake_.counts()["cuStreamWaitValue32"], 3000);
  EXPECT_EQ(fake_.counts()["cudaHostAlloc"], pages);
}

// More would have to be pinned, which waits for the GPU.
TEST_F(HostWaitTest, WhereAllFlagsAreInUseTheCallerWaits) {
  constexpr int kFlags = 1 << 14;
  CudaDevice device(0, 0);
  const auto worker = make_worker_stream("worker");
  Gate gate;
  worker->submit([&] { gate.pass(); });
  const Event event = worker->record();
  for (int i = 0; i < kFlags; ++i) device.inline_stream().wait(event);
  EXPECT_EQ(fake_.counts()["cuStreamWaitValue32"], kFlags);
  std::thread opener([&] { gate.open(); });
  device.inline_stream().wait(event);
  EXPECT_TRUE(event.ready());
  opener.join();
  device.inline_stream().synchronize();
  EXPECT_EQ(fake_.counts()["cuStreamWaitValue32"], kFlags);
  EXPECT_EQ(fake_.counts()["cudaHostAlloc"], 1);
}

// A framework may capture one while collectives run and the host waits for copies.
TEST_F(HostWaitTest, ThreadsOfOurOwnDoNotSpoilTheCaptureOfAGraph) {
  CudaDevice device(0, 0);
  const auto worker = make_worker_stream("worker");
  Gate gate;
  fake::submit(cuda_stream(device.inline_stream()).handle(), [&] { gate.pass(); });
  const Event event = device.inline_stream().record();
  fake_.set_capturing(true);
  EXPECT_FALSE(event.ready());
  worker->wait(event);
  while (fake_.counts()["cudaEventSynchronize"] == 0) std::this_thread::yield();
  fake_.set_capturing(false);
  gate.open();
  worker->synchronize();
}

TEST_F(HostWaitTest, WhereTheGpuCannotWaitTheCallerDoes) {
  fake_.fail("cuStreamWaitValue32", 0, CUDA_ERROR_NOT_SUPPORTED);
  CudaDevice device(0, 0);
  const auto worker = make_worker_stream("worker");
  Gate gate;
  bool ran = false;
  worker->submit([&] {
    gate.pass();
    ran = true;
  });
  std::thread opener([&] { gate.open(); });
  device.inline_stream().wait(worker->record());
  EXPECT_TRUE(ran);
  opener.join();
}

TEST_F(HostWaitTest, AnyThreadMayWait) {
  CudaDevice device(0, 0);
  const auto worker = make_worker_stream("worker");
  Gate gate;
  worker->submit([&] { gate.pass(); });
  std::thread([&] { device.inline_stream().wait(worker->record()); }).join();
  gate.open();
  device.inline_stream().synchronize();
  EXPECT_EQ(fake_.counts()["cuStreamWaitValue32"], 1);
}

TEST_F(HostWaitTest, AFailedEventIsTheErrorOfTheStreamHoweverItWaited) {
  for (const bool happened : {false, true}) {
    CudaDevice device(0, 0);
    const auto worker = make_worker_stream("worker");
    Gate gate;
    worker->submit([&] {
      gate.pass();
      throw CommError("a peer died");
    });
    const Event failed = worker->record();
    if (happened) {
      gate.open();
      EXPECT_THROW(failed.synchronize(), CommError);
    }
    device.inline_stream().wait(failed);
    gate.open();
    EXPECT_THROW(device.inline_stream().synchronize(), CommError);
    EXPECT_THROW(device.inline_stream().record().synchronize(), CommError);
  }
}

// As on the CPU: whoever waits for the result learns of it.
TEST_F(HostWaitTest, AStreamThatWaitsForAFailedOneHasItsErrorToo) {
  CudaDevice device(0, 0);
  const auto side = device.make_stream("side");
  const auto worker = make_worker_stream("worker");
  Gate gate;
  worker->submit([&] {
    gate.pass();
    throw CommError("a peer died");
  });
  side->wait(worker->record());
  Stream& stream = device.inline_stream();
  stream.wait(side->record());
  side->wait(stream.record());  // each may wait for the other
  gate.open();
  EXPECT_THROW(stream.synchronize(), CommError);
  EXPECT_THROW(stream.wait(side->record()), CommError);
  const auto third = device.make_stream("third");
  EXPECT_THROW(third->wait(stream.record()), CommError);
}

// A context on device 0 for each rank of a host would cost that device's memory.
TEST_F(HostWaitTest, ADeviceIsUsedWithoutTouchingTheDefaultOne) {
  fake_.set_devices(2);
  std::thread([&] {
    CudaDevice device(1, 0);
    const Buffer buffer = device.allocate(64, MemoryCategory::other);
    const Buffer pinned = device.allocate_pinned(64);
    device.fill(device.inline_stream(), view_of(buffer, DType::fp32, 16), 1.0F);
    const auto worker = make_worker_stream("worker");  // has used no device
    worker->wait(device.inline_stream().record());
    worker->synchronize();
    device.inline_stream().synchronize();
  }).join();
  EXPECT_THAT(fake_.used_devices(), ::testing::ElementsAre(1));
}

TEST_F(HostWaitTest, AThreadThatUsesAnotherDeviceKeepsIt) {
  fake_.set_devices(2);
  std::thread([&] {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    CudaDevice device(1, 0);
    const Buffer buffer = device.allocate(64, MemoryCategory::other);
    int current = -1;
    ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, 0);
  }).join();
}

}  // namespace
}  // namespace zerorun
