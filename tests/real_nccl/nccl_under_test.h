#pragma once

#include "comm/nccl/library.h"
#include "tests/common.h"

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

constexpr auto kNcclDeadline = 60s;  // which no test meets

// How a communicator is.
inline ncclResult_t state_of(const NcclFunctions& nccl, ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  EXPECT_EQ(nccl.async_error(comm, &state), ncclSuccess);
  return state;
}
// The state in which it is no more in progress.
inline ncclResult_t finished(const NcclFunctions& nccl, ncclComm_t comm) {
  const auto end = std::chrono::steady_clock::now() + kNcclDeadline;
  while (state_of(nccl, comm) == ncclInProgress && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
  }
  return state_of(nccl, comm);
}
inline std::string number_of_ranks(const ::testing::TestParamInfo<int>& info) {
  return std::to_string(info.param) + "Ranks";
}

// Makes the GPU of this number the thread's.
void use_gpu(int number);

}  // namespace zerorun::testing
