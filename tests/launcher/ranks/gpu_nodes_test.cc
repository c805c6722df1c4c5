#include "launcher/ranks/cpus.h"
#include "tests/common.h"
#include "tests/scratch.h"

namespace zerorun {
namespace {

void describe(const testing::Scratch& root, const std::string& address, const std::string& uuid,
              const std::string& node) {
  root.write("proc/driver/nvidia/gpus/" + address + "/information",
             "Model: \t\t NVIDIA H100\nIRQ:   \t\t 160\nGPU UUID: \t " + uuid + "\n");
  root.write("sys/bus/pci/devices/" + address + "/numa_node", node + "\n");
}

TEST(GpuNodes, AreThoseOfTheAddressesInTheirOrderOrOfTheUuid) {
  const testing::Scratch root;
  describe(root, "0000:b1:00.0", "GPU-bbbb-1", "1");
  describe(root, "0000:18:00.0", "GPU-aaaa-0", "0");
  describe(root, "0000:d0:00.0", "GPU-cccc-2", "-1");
  const std::vector<std::string> gpus = {"1", "0", "2", "3", "GPU-bbbb-1", "GPU-bb", "MIG-x"};
  EXPECT_THAT(gpu_nodes(gpus, root.path()),
              ElementsAre(1, 0, std::nullopt, std::nullopt, 1, 1, std::nullopt));
}

TEST(GpuNodes, AreUnknownWhereNothingDescribesThem) {
  const testing::Scratch empty;
  const std::vector<std::string> gpus = {"0"};
  EXPECT_THAT(gpu_nodes(gpus, empty.path()), ElementsAre(std::nullopt));
}

}  // namespace
}  // namespace zerorun
