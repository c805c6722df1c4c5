// Memory that PyTorch and others use on the inline stream, beside the engine's own streams: nobody
// reads too early or writes too soon.

#include "tests/common.h"
#include "tests/zero/cuda/transports.h"

namespace zerorun {
namespace {

using testing::ToyModel;

class ReusedMemoryTest : public testing::FakeCudaTest {
 protected:
  ReusedMemoryTest() : FakeCudaTest(std::chrono::microseconds(1000)) {}

  // On one GPU; parameters never stay.
  static testing::ToyJob gathering(std::vector<ParameterSpec> specs) {
    testing::ToyJob job{
        .ranks = 1, .specs = std::move(specs), .connect = testing::on(testing::Where::nccl)};
    job.config.zero.stage = 3;
    job.config.zero.param_persistence_threshold = 0;
    job.config.zero.max_reuse_distance = 0;
    job.config.zero.prefetch_bucket_size = 0;
    return job;
  }
};

TEST_F(ReusedMemoryTest, AGatherWaitsForWhoReadsThere) {
  testing::ToyJob job = gathering(ToyModel::specs());
  job.config.zero.overlap_comm = true;
  run_engines(job, [](Engine& engine, Communicator&) {
    Device& device = engine.device();
    const auto block = std::make_shared<Buffer>(device.allocate(1 << 16, MemoryCategory::other));
    engine.hooks().use_full_memory([block](int /*bucket*/, size_t nbytes) {
      EXPECT_LE(nbytes, block->nbytes());
      return Buffer(block->data(), nbytes, [block] {});
    });
    for (int again = 0; again < 10; ++again) {
      for (const std::string module : {"h.0", "h.1"}) {
        const ParameterId weight = engine.parameter_id(module + ".weight");
        std::vector<float> seen(static_cast<size_t>(engine.numel(weight)));
        engine.gather(engine.module_id(module));
        device.download(device.inline_stream(), engine.parameter(weight), seen.data());
        engine.release(engine.module_id(module));
        testing::visit(engine, "embed");
        device.inline_stream().synchronize();
        ASSERT_EQ(seen.front(), ToyModel::initial(weight, 0)) << module << " " << again;
        ASSERT_EQ(seen.back(), ToyModel::initial(weight, engine.numel(weight) - 1)) << module;
      }
    }
  });
}

// The pool gives one module's memory to the next of its size.
TEST_F(ReusedMemoryTest, TheDevicesOwnToo) {
  const testing::ToyJob job = gathering({{"a.weight", {64, 64}, "a"}, {"b.weight", {64, 64}, "b"}});
  run_engines(job, [](Engine& engine, Communicator&) {
    Device& device = engine.device();
    for (int again = 0; again < 20; ++again) {
      std::vector<float> seen(64 * 64);
      engine.gather(0);
      device.download(device.inline_stream(), engine.parameter(0), seen.data());
      engine.release(0);
      testing::visit(engine, "b");
      device.inline_stream().synchronize();
      ASSERT_EQ(seen[1], ToyModel::initial(0, 1)) << again;
    }
  });
}

TEST_F(ReusedMemoryTest, MastersWrittenOnTheInlineStreamReachEveryRank) {
  fake_.set_devices(2);
  testing::ToyJob job{.specs = {{"a.weight", {64, 64}, "a"}},
                      .connect = testing::on(testing::Where::nccl)};
  job.config.zero.stage = 0;
  job.config.precision.param_dtype = DType::bf16;
  run_engines(job, [](Engine& engine, Communicator& comm) {
    // As the bindings do: asynchronous copies on the framework's stream.
    Device& device = engine.device();
    Stream& stream = device.inline_stream();
    for (const StateInterval& part : engine.states().state_intervals()) {
      device.fill(stream, part.master, 3.0F);
    }
    engine.states().refresh_from_masters();
    for (const StateInterval& part : engine.states().state_intervals()) {
      std::vector<float> seen(static_cast<size_t>(part.numel));
      device.download(stream, part.master, seen.data());
      stream.synchronize();
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 3.0F), part.numel) << "rank " << comm.rank();
    }
    std::vector<uint16_t> parameter(64 * 64);
    device.download(stream, engine.parameter(0), parameter.data());
    stream.synchronize();
    EXPECT_EQ(std::count(parameter.begin(), parameter.end(), 0x4040), 64 * 64)
        << "rank " << comm.rank();
  });
}

}  // namespace
}  // namespace zerorun
