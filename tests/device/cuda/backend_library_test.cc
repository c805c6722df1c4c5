// libzerorun_cuda.so itself, with the real CUDA runtime inside: it opens on any machine, and
// without a GPU it says what is missing, in zerorun's own exceptions.

#include "comm/device_communicator.h"
#include "comm/nccl/communicator.h"
#include "device/cuda_backend.h"
#include "device/plugin.h"
#include "tests/common.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

#ifdef ZERORUN_CUDA_LIBRARY
class BackendLibraryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (backend_.device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  }

  const SharedLibrary library_{std::array<std::string, 1>{ZERORUN_CUDA_LIBRARY}};
  const CudaBackend& backend_ = plugin_entry<CudaBackend>(library_, kCudaBackendEntry);
};

TEST_F(BackendLibraryTest, SaysWhyThereIsNoDeviceInErrorsThatAreCaughtByType) {
  EXPECT_EQ(backend_.device_count(), 0);
  EXPECT_THAT(backend_.why_no_device(), HasSubstr("cudaError"));
  EXPECT_THROW(backend_.make_device({}), DeviceError);
  EXPECT_THROW(backend_.identity_of(*make_cpu_device()), InternalError);
}

// Each has a line of its own, whatever else is missing.
TEST_F(BackendLibraryTest, ReportsEverythingThatIsMissingAtOnce) {
  std::vector<std::string> lines = backend_.report();
  lines.push_back(plugin_entry<NcclBackend>(library_, kNcclBackendEntry).describe());
  EXPECT_THAT(lines, Contains(AnyOf(HasSubstr("driver: missing: install NVIDIA's driver"),
                                    HasSubstr("built with CUDA "))));
  EXPECT_THAT(lines, Contains(StartsWith("GPU: missing: none is visible: ")));
  for (const std::string library : {"cuBLAS", "cuBLASLt", "cuDNN", "NCCL"}) {
    EXPECT_THAT(lines, Contains(AnyOf(ContainsRegex("^" + library + " [0-9.]+ [(]/.*[.]so"),
                                      ContainsRegex("^" + library + ": missing: .*pip install"))));
  }
}

// As NCCL does, by the host and the PCI address.
TEST(SharedGpu, RanksAreNamedOnOneGpuOrOnPartsOfIt) {
  const std::string first = gpu_of_rank("PCI 0000:0b:00, UUID 01");
  const std::string instance = gpu_of_rank("PCI 0000:0b:00, UUID 02");
  const std::string other = gpu_of_rank("PCI 0000:0c:00, UUID 03");
  const std::string elsewhere = "another host\nPCI 0000:0b:00, UUID 04";
  const auto found = [](std::vector<std::string> gpus) { return shared_gpu(gpus).value_or(""); };
  EXPECT_EQ(found({first}), "");
  EXPECT_EQ(found({first, other, elsewhere}), "");
  EXPECT_EQ(found({other, first, first}), "ranks 1 and 2 have the same GPU (PCI 0000:0b:00)");
  EXPECT_EQ(found({first, other, instance}),
            "ranks 0 and 2 have MIG instances of one GPU (PCI 0000:0b:00)");
}

// Under torchrun or srun as well, where zerorun's launcher has set nothing.
TEST(LaunchOrder, IsTheProgramsUnlessTheUserChose) {
  const char* const kName = "NCCL_LAUNCH_ORDER_IMPLICIT";
  unsetenv(kName);
  describe_device_collectives();  // opens the library
  EXPECT_STREQ(getenv(kName), "1");
  setenv(kName, "0", 1);
  describe_device_collectives();
  EXPECT_STREQ(getenv(kName), "0");
  unsetenv(kName);
}

TEST(DescribeCuda, BeginsWithTheCompilerAndNeedsNoDriver) {
  const std::vector<std::string> lines = describe_cuda();
  EXPECT_THAT(lines.front(), StartsWith("backend compiled by nvcc "));
  EXPECT_THAT(describe_device_collectives(), StartsWith("NCCL"));
}
#endif

TEST(OpenCudaBackend, NamesTheFirstThingThatIsMissing) {
  if (why_no_cuda().empty()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THAT(why_no_cuda(), HasSubstr("CUDA"));
  EXPECT_FALSE(cuda_is_available());
  EXPECT_THROW(make_cuda_device(), DeviceError);
  EXPECT_THROW(make_device(Accelerator::cuda), DeviceError);
  EXPECT_EQ(make_device(Accelerator::automatic)->name(), "cpu");
}

}  // namespace
}  // namespace zerorun
