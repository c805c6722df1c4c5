// The GPU that a rank gets from the CUDA backend.

#include "device/cuda_backend.h"
#include "tests/device/cuda/fake_cuda_test.h"
#include "zerorun/error.h"

namespace zerorun {

extern "C" const CudaBackend* zerorun_cuda_backend();

namespace {

// A rank on a host with three GPUs.
class ChosenDeviceTest : public testing::FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    fake_.set_devices(3);
  }
  void TearDown() override {
    unsetenv("LOCAL_RANK");
    unsetenv("ZERORUN_SHARE_GPUS");
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
    FakeCudaTest::TearDown();
  }

  // The device's name, or the error.
  static std::string chosen(std::optional<int> index = std::nullopt) {
    CudaDeviceOptions options;
    options.index = index;
    try {
      return zerorun_cuda_backend()->make_device(options)->name();
    } catch (const DeviceError& error) {
      return error.what();
    }
  }
};

TEST_F(ChosenDeviceTest, ALocalRankWithoutOneIsAnErrorUnlessGpusAreShared) {
  setenv("LOCAL_RANK", "4", 1);
  for (const char* no : {"", "0"}) {
    setenv("ZERORUN_SHARE_GPUS", no, 1);
    EXPECT_THAT(chosen(), HasSubstr("device 4 is asked for (LOCAL_RANK), but 3 GPUs are visible"));
  }
  for (const char* yes : {"1", "nccl"}) {
    setenv("ZERORUN_SHARE_GPUS", yes, 1);
    EXPECT_THAT(chosen(), StartsWith("cuda:1 "));
  }
  unsetenv("ZERORUN_SHARE_GPUS");
  setenv("LOCAL_RANK", "3", 1);
  EXPECT_THAT(chosen(), HasSubstr("device 3 is asked for (LOCAL_RANK)"));
}

TEST_F(ChosenDeviceTest, IsThatOfTheLocalRankWhichASchedulerSaysWhereNoLauncherDoes) {
  EXPECT_THAT(chosen(), StartsWith("cuda:0 "));
  setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
  EXPECT_THAT(chosen(), StartsWith("cuda:1 "));
  setenv("LOCAL_RANK", "2", 1);
  EXPECT_THAT(chosen(), StartsWith("cuda:2 "));
}

TEST_F(ChosenDeviceTest, TheOnlyOneThatASchedulerShowsIsTheRanks) {
  fake_.set_devices(1);
  setenv("LOCAL_RANK", "2", 1);
  EXPECT_THAT(chosen(), HasSubstr("device 2 is asked for (LOCAL_RANK), but 1 GPU is visible"));
  setenv("CUDA_VISIBLE_DEVICES", "GPU-ab", 1);  // srun --gpus-per-task=1
  EXPECT_THAT(chosen(), StartsWith("cuda:0 "));
  EXPECT_THAT(chosen(2), HasSubstr("device 2 is asked for, but 1 GPU is visible"));
}

TEST_F(ChosenDeviceTest, IsTheOneThatIsAskedForWhateverTheRank) {
  setenv("LOCAL_RANK", "2", 1);
  setenv("ZERORUN_SHARE_GPUS", "1", 1);
  EXPECT_THAT(chosen(1), StartsWith("cuda:1 "));
  EXPECT_THAT(chosen(3), HasSubstr("device 3 is asked for, but 3 GPUs are visible"));
  EXPECT_THAT(chosen(-1), HasSubstr("device -1 is asked for, but"));
}

}  // namespace
}  // namespace zerorun
