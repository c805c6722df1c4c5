#pragma once

#include "device/cuda/cuda_device.h"
#include "device/drain.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "tests/common.h"

namespace zerorun::testing {

// No call was one that the real libraries punish, and all was given back.
inline void expect_clean() {
  EXPECT_THAT(fake::FakeCuda::instance().violations(), IsEmpty());
  EXPECT_THAT(fake::FakeCuda::instance().leaks(), IsEmpty());
}

// A test on the fake CUDA libraries, whose streams start work up to `delay` late. It fails when a
// call was one that the real libraries punish, and when something was not given back.
struct FakeCudaTest : ::testing::Test {
  explicit FakeCudaTest(std::chrono::microseconds delay = {}) : delay_(delay) {}

  void SetUp() override {
    fake_.reset();
    fake_.set_delay(delay_);
  }
  void TearDown() override { expect_clean(); }

  const std::chrono::microseconds delay_;
  fake::FakeCuda& fake_ = fake::FakeCuda::instance();
};

// The same with a delay.
template <int kMicroseconds>
struct LateCudaTest : FakeCudaTest {
  LateCudaTest() : FakeCudaTest(std::chrono::microseconds(kMicroseconds)) {}
};

// The values that are there once the stream gets to it.
template <typename T = float>
std::vector<T> downloaded(Device& device, TensorView view, Stream& stream) {
  std::vector<T> values(static_cast<size_t>(view.numel));
  device.download(stream, view, values.data());
  stream.synchronize();
  return values;
}
template <typename T = float>
std::vector<T> downloaded(Device& device, TensorView view) {
  return downloaded<T>(device, view, device.inline_stream());
}

// Of this thread, for a GPU.
inline int64_t waits_so_far() {
  const std::vector<fake::Call> calls = fake::FakeCuda::instance().calls();
  return std::ranges::count_if(calls, [](const fake::Call& call) {
    return call.thread == std::this_thread::get_id() && call.name.ends_with("Synchronize");
  });
}

// Ends what uses memory before the memory ends, on errors too.
struct Drain {
  CudaDevice& device;
  ~Drain() { drain(device.inline_stream()); }
};

}  // namespace zerorun::testing
