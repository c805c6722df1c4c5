// Train's kernels and models (tests/train/*_conformance.h) on a real GPU.

#include "tests/train/model/kernels_conformance.h"
#include "tests/train/model/model_conformance.h"

namespace zerorun::train::testing {
namespace {

std::vector<KernelsUnderTest> cases() {
  KernelsUnderTest gpu = {
      "gpu", [] { return make_cuda_device(); },
      [](Device& device, DType dtype) { return make_kernels(device, {.dtype = dtype}); }};
  gpu.exact_fusion = false;
  return with_every_dtype(std::move(gpu));
}

ZR_INSTANTIATE_KERNELS_CONFORMANCE(cases());
INSTANTIATE_TEST_SUITE_P(Kernels, ModelConformance, ::testing::ValuesIn(cases()), name_of_case);

}  // namespace
}  // namespace zerorun::train::testing
