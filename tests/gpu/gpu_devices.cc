#include "tests/device/conformance.h"
#include "zerorun/exact_sum.h"
#include "zerorun/out_of_memory.h"

namespace zerorun::testing {

std::vector<DeviceUnderTest> devices_under_test() {
  return {{"cuda", [] { return make_cuda_device(); }}};
}

namespace {

// Tensors of more than 2^31 elements, for which an emulation has neither time nor memory. All
// elements of one are equal, so the exact sum of their squares looks at each of them.
struct LargeTensors : DeviceConformance {
  static constexpr int64_t kFirst = int64_t{1} << 31;
  static constexpr int64_t kNumel = kFirst + 3 * kQuantizedBlock;

  void SetUp() override {
    DeviceConformance::SetUp();
    try {
      narrow_ = tensor(DType::bf16, kNumel);
      wide_ = tensor(DType::fp32, kNumel);
      codes_ = tensor(DType::uint8, quantized_nbytes(kNumel, 8));
    } catch (const OutOfMemory& error) {
      GTEST_SKIP() << error.what();
    }
  }
  void TearDown() override {
    buffers_.clear();
    DeviceConformance::TearDown();
  }

  TensorView tensor(DType dtype, int64_t numel) {
    const TensorView shape{nullptr, numel, dtype};
    buffers_.push_back(device_->allocate(shape.nbytes(), MemoryCategory::other));
    return view_of(buffers_.back(), dtype, numel);
  }
  void expect_all(TensorView view, double value) {
    const auto sum = array(std::vector<int64_t>(ExactSum::kWords));
    const SquaresSegment all{.numel = view.numel};
    device_->sum_of_squares(*stream_, view, {&all, 1}, sum);
    const std::vector<int64_t> words = sum.host();
    EXPECT_EQ(ExactSum::from_words(words).value(), static_cast<double>(view.numel) * value * value);
  }
  // Without momentum: takes the gradient from the parameter.
  void step(TensorView parameter, TensorView gradient) {
    const UpdateScalars scalars{.rule = UpdateRule::sgd, .lr = 1.0F, .beta1 = 0.0};
    update({.master = parameter, .grad = gradient, .param = parameter},
           {{.begin = 0, .numel = kFirst, .scalars = scalars},
            {.begin = kFirst, .numel = kNumel - kFirst, .scalars = scalars, .parameter = 1}});
  }

  std::vector<Buffer> buffers_;
  TensorView narrow_;
  TensorView wide_;
  TensorView codes_;
};

TEST_P(LargeTensors, EveryElementIsFilledCastAddedAndScaled) {
  device_->fill(*stream_, narrow_, 1.0F);
  expect_all(narrow_, 1.0);
  device_->cast(*stream_, narrow_, wide_);
  expect_all(wide_, 1.0);
  device_->add(*stream_, narrow_, wide_);
  device_->scale(*stream_, wide_, 1.5F);
  expect_all(wide_, 3.0);
  const TensorCopy one{.src = wide_, .dst = narrow_, .accumulate = true};
  device_->copy(*stream_, {&one, 1});
  expect_all(narrow_, 4.0);
}

TEST_P(LargeTensors, EveryElementIsUpdated) {
  device_->fill(*stream_, narrow_, 1.0F);
  device_->fill(*stream_, wide_, 4.0F);
  step(wide_, narrow_);
  expect_all(wide_, 3.0);
  step(narrow_, wide_);
  expect_all(narrow_, 2.0);
}

// Multiples of a scale of 1 are exact.
TEST_P(LargeTensors, EveryElementIsQuantized) {
  for (const auto& [bits, value] : {std::pair(8, 127.0F), std::pair(4, -8.0F)}) {
    const TensorView codes = codes_.slice(0, quantized_nbytes(kNumel, bits));
    device_->fill(*stream_, narrow_, value);
    device_->quantize(*stream_, narrow_, codes, {.bits = bits});
    device_->dequantize(*stream_, codes, wide_, {.bits = bits});
    expect_all(wide_, value);
  }
}

ZR_ON_ALL_DEVICES(LargeTensors);

}  // namespace
}  // namespace zerorun::testing
