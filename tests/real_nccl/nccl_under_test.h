#pragma once

#include "comm/nccl/library.h"

namespace zerorun::testing {

// The NCCL on which the tests of its states run. There are two: the real one on a fake of CUDA
// (real_nccl.cc), and the fake that zerorun's own tests have (fake_nccl.cc). What passes on both is
// what the fake may be trusted with.
class NcclUnderTest {
 public:
  NcclUnderTest();
  NcclUnderTest(const NcclUnderTest&) = delete;
  NcclUnderTest& operator=(const NcclUnderTest&) = delete;
  ~NcclUnderTest();

  const NcclFunctions& functions() const { return functions_; }

 private:
  NcclFunctions functions_;
};

// Makes the GPU of this number the thread's.
void use_gpu(int number);

}  // namespace zerorun::testing
