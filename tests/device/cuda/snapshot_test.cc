// What an asynchronous save of a GPU's states makes the training wait for.

#include "comm/nccl/communicator.h"
#include "device/cuda/cuda_device.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/common.h"
#include "tests/device/cuda/counted_engine.h"
#include "tests/device/cuda/fake_cuda_test.h"
#include "zerorun/checkpoint.h"
#include "zerorun/engine.h"

namespace zerorun::snapshot {
namespace {

constexpr int64_t kPieceNumel = (8 << 20) / sizeof(float);

class SnapshotTest : public testing::FakeCudaTest {
 protected:
  SnapshotTest() : FakeCudaTest(std::chrono::microseconds(300)) {}

  // Calls that wait for a stream, on the training's thread: the thread that writes waits for
  // events.
  int waits_of_streams() { return fake_.counts()["cudaStreamSynchronize"]; }
};

std::unique_ptr<Engine> make_engine(Device& device, Communicator& comm, int matrices, float value) {
  std::vector<ParameterSpec> specs = {{"large", {2 * kPieceNumel + 3}, "m", 0, true, ""}};
  for (int i = 0; i < matrices; ++i) {
    specs.push_back({"w" + std::to_string(i), {7, 5}, "m", 0, true, ""});
  }
  return testing::make_counted_engine(device, comm, std::move(specs), value);
}

// The copies follow each other on the stream; what the ranks tell each other has waits of its own.
TEST_F(SnapshotTest, ASaveWaitsForTheGpuOnceHoweverManyTensorsThereAre) {
  const testing::TemporaryDirectory directory;
  const auto device = std::make_shared<CudaDevice>(0, 0);
  const auto comm = make_nccl_communicator({.device = device});
  std::vector<int> waits;
  for (const int matrices : {1, 40}) {
    const auto engine = make_engine(*device, *comm, matrices, 1.0F);
    const uint64_t hash = engine->states().parameter_hash();
    AsyncSaver saver(engine->states(), *comm);
    const std::string tag = "of" + std::to_string(matrices);
    const int before = waits_of_streams();
    saver.save({.directory = directory.string(), .tag = tag});
    waits.push_back(waits_of_streams() - before);
    saver.wait();
    const auto loaded = make_engine(*device, *comm, matrices, 2.0F);
    load_checkpoint(loaded->states(), *comm, directory.string(), tag);
    EXPECT_EQ(loaded->states().parameter_hash(), hash);
  }
  EXPECT_EQ(waits[0], waits[1]);
}

}  // namespace
}  // namespace zerorun::snapshot
