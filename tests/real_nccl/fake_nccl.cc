// The fake NCCL of zerorun's own tests. What it reports beside its return values is not looked at:
// the tests of states provoke it.

#include "testing/fake_cuda/fake_cuda.h"
#include "tests/real_nccl/nccl_under_test.h"

namespace zerorun::testing {

NcclUnderTest::NcclUnderTest() : functions_(open_nccl()) {
  fake::FakeCuda::instance().reset();
  fake::FakeCuda::instance().set_devices(8);
}

NcclUnderTest::~NcclUnderTest() { EXPECT_TRUE(fake::FakeCuda::instance().leaks().empty()); }

void use_gpu(int number) { cudaSetDevice(number); }

}  // namespace zerorun::testing
