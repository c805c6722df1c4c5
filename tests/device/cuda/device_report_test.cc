// The GPUs in the output of `zerorun env`, on fake ones.
#include "device/cuda/device_report.h"

#include "comm/device_communicator.h"
#include "comm/nccl/communicator.h"
#include "device/cuda/libraries/library_files.h"
#include "device/cuda_backend.h"
#include "device/plugin.h"
#include "tests/device/cuda/fake_cuda_test.h"

extern "C" const zerorun::CudaBackend* zerorun_cuda_backend();

namespace zerorun::testing {
namespace {

struct DeviceReportTest : FakeCudaTest {
  // The report without driver and devices, which have a line each.
  std::vector<std::string> links() const {
    const std::vector<std::string> report = cuda_report();
    return {report.begin() + 1 + fake_.devices(), report.end()};
  }
};

TEST_F(DeviceReportTest, NamesDriverAndDevices) {
  fake_.set_devices(2);
  EXPECT_THAT(cuda_report()[0], HasSubstr("driver 580.00.01 for CUDA 13.2, built with CUDA 13.0"));
  EXPECT_THAT(cuda_report()[1], StartsWith("cuda:0: Fake GPU, compute capability 9.0, 1.0 GiB"));
  EXPECT_THAT(cuda_report()[2], StartsWith("cuda:1: Fake GPU"));
}

TEST_F(DeviceReportTest, WithoutADeviceItSaysWhy) {
  fake_.set_devices(0);
  EXPECT_EQ(visible_cuda_devices(), 0);
  EXPECT_THAT(why_no_cuda_device(), HasSubstr("no CUDA-capable device"));
  EXPECT_THAT(cuda_report(), ElementsAre(StartsWith("driver 580"),
                                         StartsWith("GPU: missing: none is visible: no CUDA")));
  EXPECT_THROW(CudaDevice(0, 0), DeviceError);
}

TEST_F(DeviceReportTest, OnlyADriverThatCannotBeUsedFails) {
  EXPECT_FALSE(cuda_driver_fails());
  fake_.set_devices(0);  // as CUDA_VISIBLE_DEVICES may have it
  EXPECT_FALSE(cuda_driver_fails());
  fake_.set_driver(11080);
  EXPECT_TRUE(cuda_driver_fails());
  EXPECT_THAT(why_no_cuda_device(), HasSubstr("driver 580.00.01 for CUDA 11.8, built with CUDA"));
}

TEST_F(DeviceReportTest, LibrariesOfBothMajorVersionsServeAsFarAsTheDriverRunsThem) {
  const auto files = [] { return library_files_of_cuda("cublas", "/lib/libcublas.so.13"); };
  const auto both = ElementsAre("libcublas.so.13", "libcublas.so.12", "/lib/libcublas.so.13",
                                "/lib/libcublas.so.12");
  for (const int driver : {0, 11080, 13000, 14010}) {
    fake_.set_driver(driver);
    EXPECT_THAT(files(), both) << driver;
  }
  fake_.set_driver(12020);
  EXPECT_THAT(files(), ElementsAre("libcublas.so.12", "/lib/libcublas.so.12"));
  EXPECT_THAT(library_files_of_cuda("cudart", ""), ElementsAre("libcudart.so.12"));
}

TEST_F(DeviceReportTest, ADeviceThatCannotBeAskedLeavesTheOthers) {
  fake_.set_devices(2);
  fake_.fail("cudaGetDeviceProperties", 0, cudaErrorUnknown);
  EXPECT_THAT(cuda_report(),
              ElementsAre(StartsWith("driver"), StartsWith("cuda:0: cannot be used: "),
                          StartsWith("cuda:1: Fake GPU")));
}

// Two GPUs are linked by NVLink, the third is behind another host bridge.
TEST_F(DeviceReportTest, ShowsHowGpusAreLinkedAndWhoReadsWhom) {
  fake_.set_devices(3);
  fake_.set_links({.between = {{{0, 1}, 4}}});
  EXPECT_THAT(
      links(),
      ElementsAre("links   cuda:0   cuda:1   cuda:2   ", "cuda:0  -        NV4      SYS!     ",
                  "cuda:1  NV4      -        SYS!     ", "cuda:2  SYS!     SYS!     -        ",
                  StartsWith("!: no peer access"), StartsWith("NV and a number"),
                  StartsWith("SYS: through the connection between NUMA nodes")));
  fake_.set_links({.switched = 18});
  EXPECT_THAT(links(), Contains("cuda:1  NV18     -        NV18     "));
}

TEST_F(DeviceReportTest, WithoutNvLinkTheCommonBridgeIsTheLink) {
  fake_.set_devices(2);
  EXPECT_THAT(links(),
              ElementsAre("links   cuda:0   cuda:1   ", "cuda:0  -        PHB      ",
                          "cuda:1  PHB      -        ", "PHB: through a PCIe host bridge"));
}

TEST_F(DeviceReportTest, WithoutNvmlLinksAndTheDriversVersionAreUnknownAndItSaysWhy) {
  EXPECT_THAT(links(), ElementsAre());  // of one GPU
  fake_.reset();
  fake_.fail("nvmlInit_v2", 0, 9);
  EXPECT_THAT(cuda_report().front(), HasSubstr("driver of unknown version (nvmlInit failed"));
  fake_.reset();
  fake_.set_devices(2);
  fake_.fail("nvmlInit_v2", 1, 9);  // the first is asked for the driver's version
  EXPECT_THAT(links(), ElementsAre(StartsWith("links"), "cuda:0  -        ?        ",
                                   "cuda:1  ?        -        ",
                                   HasSubstr("?: unknown: nvmlInit failed: a fake error")));
}

// The GPU that a rank gets from the CUDA backend.

// A rank on a host with three GPUs.
struct ChosenDeviceTest : testing::FakeCudaTest {
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

// libzerorun_cuda.so itself, with the real CUDA runtime inside: it opens on any machine, and
// without a GPU it says what is missing, in zerorun's own exceptions.
#ifdef ZERORUN_CUDA_LIBRARY
struct BackendLibraryTest : ::testing::Test {
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
}  // namespace zerorun::testing
