// CUDA streams that wait for events of the host.

#include "device/cpu/cpu_stream.h"
#include "tests/device/cuda/fake_cuda_test.h"
#include "tests/gate.h"

namespace zerorun::testing {
namespace {

class HostWaitTest : public FakeCudaTest {};

// A device, and work on the host that is held until the gate opens.
struct HeldStream {
  explicit HeldStream(std::function<void()> then = [] {}) {
    worker->submit([this, then = std::move(then)] {
      gate.pass();
      then();
    });
    event = worker->record();
  }
  ~HeldStream() { gate.open(); }

  Gate gate;
  CudaDevice device{0, 0};
  const std::unique_ptr<CpuStream> worker = make_worker_stream("worker");
  Stream& stream = device.inline_stream();
  Event event;
};
[[noreturn]] void lose_peer() { throw CommError("a peer died"); }

// `first` is busy, so `last` is the first to wait for the host; what it waits for needs `first`. A
// host function that waits would hold up all others.
TEST_F(HostWaitTest, StreamsThatWaitForEachOtherThroughTheHostGoOn) {
  CudaDevice device(0, 0);
  const auto worker = make_worker_stream("worker");
  const auto other = make_worker_stream("other");
  for (int round = 0; round < 50; ++round) {
    const auto first = device.make_stream("first");
    const auto last = device.make_stream("last");
    Gate first_may_go;
    Gate gate;
    fake::submit(cuda_stream(*first).handle(), [&] { first_may_go.pass(); });
    other->submit([&] { gate.pass(); });
    first->wait(other->record());
    worker->wait(first->record());
    last->wait(worker->record());
    gate.open();
    first_may_go.open();
    last->synchronize();
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
  HeldStream held;
  for (int i = 0; i < kFlags; ++i) held.stream.wait(held.event);
  EXPECT_EQ(fake_.counts()["cuStreamWaitValue32"], kFlags);
  std::thread opener([&] { held.gate.open(); });
  held.stream.wait(held.event);
  EXPECT_TRUE(held.event.ready());
  opener.join();
  held.stream.synchronize();
  EXPECT_EQ(fake_.counts()["cuStreamWaitValue32"], kFlags);
  EXPECT_EQ(fake_.counts()["cudaHostAlloc"], 1);
}

// A framework may capture one while collectives run and the host waits for copies.
TEST_F(HostWaitTest, ThreadsOfOurOwnDoNotSpoilTheCaptureOfAGraph) {
  CudaDevice device(0, 0);
  Gate gate;
  fake::submit(cuda_stream(device.inline_stream()).handle(), [&] { gate.pass(); });
  const Event event = device.inline_stream().record();
  fake_.set_capturing(true);
  EXPECT_FALSE(event.ready());
  std::thread waiting([&] { event.synchronize(); });
  while (fake_.counts()["cudaEventSynchronize"] == 0) std::this_thread::yield();
  fake_.set_capturing(false);
  gate.open();
  waiting.join();
}

// Work on `first` that a worker waits for, which `last` waits for: the worker is held until `begin`
// opens, `first` until `end` does.
struct ThroughTheHost {
  explicit ThroughTheHost(CudaDevice& device)
      : first(device.make_stream("first")), last(device.make_stream("last")) {
    fake::submit(cuda_stream(*first).handle(), [this] { end.pass(); });
    worker->submit([this] { begin.pass(); });
    worker->wait(first->record());
    last->wait(worker->record());
  }

  Gate begin;
  Gate end;
  std::unique_ptr<Stream> first;
  std::unique_ptr<Stream> last;
  const std::unique_ptr<CpuStream> worker = make_worker_stream("worker");
};

// The first launch of a kernel waits for all streams, and calls of other threads wait for it (CUDA
// C++ Programming Guide 13.0, "Lazy Loading"): a thread for which a stream waits must go on
// without.
TEST_F(HostWaitTest, AThreadThatAStreamWaitsForNeedsNoDriver) {
  CudaDevice device(0, 0);
  for (int round = 0; round < 3; ++round) {
    ThroughTheHost work(device);
    fake_.set_driver_held(true);
    work.begin.open();
    work.end.open();
    work.worker->synchronize();
    fake_.set_driver_held(false);
    work.last->synchronize();
  }
  EXPECT_EQ(fake_.counts()["cudaEventSynchronize"], 0);
}

TEST_F(HostWaitTest, WhereTheGpuCannotWriteAThreadAsksTheDriver) {
  fake_.fail("cuStreamWriteValue32", 0, CUDA_ERROR_NOT_SUPPORTED);
  CudaDevice device(0, 0);
  ThroughTheHost work(device);
  work.begin.open();
  work.end.open();
  work.last->synchronize();
  EXPECT_EQ(fake_.counts()["cudaEventSynchronize"], 1);
}

TEST_F(HostWaitTest, AThreadLearnsThatTheGpuHasFailed) {
  CudaDevice device(0, 0);
  ThroughTheHost work(device);
  work.begin.open();
  fake_.break_device(0, cudaErrorIllegalAddress);
  work.end.open();
  EXPECT_THROW(work.first->synchronize(), DeviceError);
  EXPECT_THROW(work.worker->synchronize(), DeviceError);
}

TEST_F(HostWaitTest, WhereTheGpuCannotWaitTheCallerDoes) {
  fake_.fail("cuStreamWaitValue32", 0, CUDA_ERROR_NOT_SUPPORTED);
  bool ran = false;
  HeldStream held([&] { ran = true; });
  std::thread opener([&] { held.gate.open(); });
  held.stream.wait(held.event);
  EXPECT_TRUE(ran);
  opener.join();
}

TEST_F(HostWaitTest, AFailedEventIsTheErrorOfTheStreamHoweverItWaited) {
  for (const bool happened : {false, true}) {
    HeldStream held(lose_peer);
    if (happened) {
      held.gate.open();
      EXPECT_THROW(held.event.synchronize(), CommError);
    }
    held.stream.wait(held.event);
    held.gate.open();
    EXPECT_THROW(held.stream.synchronize(), CommError);
    EXPECT_THROW(held.stream.record().synchronize(), CommError);
  }
}

// As on the CPU: whoever waits for the result learns of it.
TEST_F(HostWaitTest, AStreamThatWaitsForAFailedOneHasItsErrorToo) {
  HeldStream held(lose_peer);
  const auto side = held.device.make_stream("side");
  side->wait(held.event);
  held.stream.wait(side->record());
  side->wait(held.stream.record());  // each may wait for the other
  held.gate.open();
  EXPECT_THROW(held.stream.synchronize(), CommError);
  EXPECT_THROW(held.stream.wait(side->record()), CommError);
  const auto third = held.device.make_stream("third");
  EXPECT_THROW(third->wait(held.stream.record()), CommError);
}

// A context on device 0 for each rank of a host would cost that device's memory.
TEST_F(HostWaitTest, ADeviceIsUsedWithoutTouchingTheDefaultOneOrThatOfTheThread) {
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
  EXPECT_THAT(fake_.used_devices(), ElementsAre(1));
  std::thread([&] {  // that uses another one already
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    CudaDevice(1, 0).allocate(64, MemoryCategory::other);
    int current = -1;
    ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, 0);
  })
      .join();
}

// Streams that a framework lends to the CUDA device.
struct LentStreamTest : LateCudaTest<500> {
  void SetUp() override {
    FakeCudaTest::SetUp();
    ASSERT_EQ(cudaStreamCreateWithFlags(lent_.data(), cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    cudaStreamDestroy(lent_[0]);
    FakeCudaTest::TearDown();
  }

  // The handle of the other one, CUDA's default stream, is null. It is PyTorch's, too.
  std::array<cudaStream_t, 2> lent_ = {};
};

TEST_F(LentStreamTest, WorkOnOneComesAfterThatOnTheOneBefore) {
  CudaDevice device(0, 0);
  EXPECT_EQ(device.gpu(), 0);
  const Buffer block = device.allocate(2 * sizeof(float), MemoryCategory::other);
  const TensorView value = view_of(block, DType::fp32, 1);
  const TensorView one = view_of(block, DType::fp32, 1, sizeof(float));
  device.fill(device.inline_stream(), value, 1.0F);  // on a stream of its own
  device.fill(device.inline_stream(), one, 1.0F);
  for (int i = 0; i < 20; ++i) {
    device.use_inline_stream(lent_[static_cast<size_t>(i % 2)]);
    device.scale(device.inline_stream(), value, 2.0F);
    device.add(device.inline_stream(), one, value);  // in another order they give another result
  }
  float found = 0;
  device.download(device.inline_stream(), value, &found);
  device.inline_stream().synchronize();
  EXPECT_EQ(found, static_cast<float>((1U << 21U) - 1));
}

TEST_F(LentStreamTest, TheSameStreamAgainCostsNoCall) {
  CudaDevice device(0, 0);
  for (const cudaStream_t stream : lent_) {
    device.use_inline_stream(stream);
    const auto before = fake_.calls().size();
    device.use_inline_stream(stream);
    EXPECT_EQ(fake_.calls().size(), before);
  }
}

}  // namespace
}  // namespace zerorun::testing
