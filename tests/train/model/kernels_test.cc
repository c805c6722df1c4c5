#include "tests/train/model/kernels_conformance.h"
#include "train/cpu/matrix.h"

namespace zerorun::train::testing {
namespace {

ZR_INSTANTIATE_KERNELS_CONFORMANCE(with_every_dtype(cpu_kernels()));

TEST(GeluTest, MatchesDefinitionAndItsDerivative) {
  std::vector<float> x = random_floats(1003, 1, 3.0F);
  x.insert(x.end(), {0.0F, -0.0F, 1e-8F, 40.0F, -40.0F, 1e4F, -1e4F});
  const auto dy = random_floats(std::ssize(x), 2);
  std::vector<float> y(x.size());
  std::vector<float> again(x.size());
  std::vector<float> dx = dy;
  gelu(std::ssize(x), x.data(), y.data());
  gelu_backward(std::ssize(x), x.data(), again.data(), dx.data());
  EXPECT_EQ(y, again);
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    EXPECT_NEAR(y[i], gelu_reference(at), 1e-6 * std::max(1.0, std::abs(at))) << at;
    const double slope = (gelu_reference(at + 1e-4) - gelu_reference(at - 1e-4)) / 2e-4;
    EXPECT_NEAR(dx[i], dy[i] * slope, 5e-6 * std::max(1.0, std::abs(double{dy[i]}))) << at;
  }
}

}  // namespace
}  // namespace zerorun::train::testing
