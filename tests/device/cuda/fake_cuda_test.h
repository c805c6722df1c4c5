#pragma once

#include "device/cuda/cuda_device.h"
#include "device/drain.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "tests/common.h"

namespace zerorun::testing {

// A test on the fake CUDA libraries, whose streams start work up to `delay` late. It fails when a
// call was one that the real libraries punish, and when something was not given back.
class FakeCudaTest : public ::testing::Test {
 protected:
  explicit FakeCudaTest(std::chrono::microseconds delay = {}) : delay_(delay) {}

  void SetUp() override {
    fake_.reset();
    fake_.set_delay(delay_);
  }
  void TearDown() override {
    EXPECT_THAT(fake_.violations(), ::testing::IsEmpty());
    EXPECT_THAT(fake_.leaks(), ::testing::IsEmpty());
  }

  const std::chrono::microseconds delay_;
  fake::FakeCuda& fake_ = fake::FakeCuda::instance();
};

// Ends what uses memory before the memory ends, on errors too.
struct Drain {
  CudaDevice& device;
  ~Drain() { drain(device.inline_stream()); }
};

}  // namespace zerorun::testing
