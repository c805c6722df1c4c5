// Memory that PyTorch and others use on the inline stream, beside the engine's own streams: nobody
// reads too early or writes too soon.

#include "tests/zero/cuda/transports.h"

namespace zerorun::testing {
namespace {

using ReusedMemoryTest = LateCudaTest<1000>;

// On one GPU; parameters never stay.
ToyJob gathering(std::vector<ParameterSpec> specs) {
  ToyJob job{.config = gathering_config(3),
             .ranks = 1,
             .specs = std::move(specs),
             .connect = on(Where::nccl)};
  job.config.zero.prefetch_bucket_size = 0;
  job.config.share_parameters = true;
  return job;
}

TEST_F(ReusedMemoryTest, AGatherWaitsForWhoReadsThere) {
  ToyJob job = gathering(ToyModel::specs());
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
        visit(engine, "embed");
        device.inline_stream().synchronize();
        ASSERT_EQ(seen.front(), ToyModel::initial(weight, 0)) << module << " " << again;
        ASSERT_EQ(seen.back(), ToyModel::initial(weight, engine.numel(weight) - 1)) << module;
      }
    }
  });
}

// The pool gives one module's memory to the next of its size.
TEST_F(ReusedMemoryTest, TheDevicesOwnToo) {
  const ToyJob job = gathering({{"a.weight", {64, 64}, "a"}, {"b.weight", {64, 64}, "b"}});
  run_engines(job, [](Engine& engine, Communicator&) {
    Device& device = engine.device();
    for (int again = 0; again < 20; ++again) {
      std::vector<float> seen(64 * 64);
      engine.gather(0);
      device.download(device.inline_stream(), engine.parameter(0), seen.data());
      engine.release(0);
      visit(engine, "b");
      device.inline_stream().synchronize();
      ASSERT_EQ(seen[1], ToyModel::initial(0, 1)) << again;
    }
  });
}

TEST_F(ReusedMemoryTest, MastersWrittenOnTheInlineStreamReachEveryRank) {
  fake_.set_devices(2);
  ToyJob job{.specs = {{"a.weight", {64, 64}, "a"}}, .connect = on(Where::nccl)};
  job.config.zero.stage = 0;
  job.config.precision.param_dtype = DType::bf16;
  run_engines(job, [](Engine& engine, Communicator& comm) {
    // As the bindings do: asynchronous copies on the framework's stream.
    Device& device = engine.device();
    for (const StateInterval& part : engine.states().state_intervals()) {
      device.fill(device.inline_stream(), part.master, 3.0F);
    }
    engine.states().refresh_from_masters();
    for (const StateInterval& part : engine.states().state_intervals()) {
      EXPECT_THAT(downloaded(device, part.master), ::testing::Each(3.0F)) << comm.rank();
    }
    EXPECT_THAT(downloaded<uint16_t>(device, engine.parameter(0)), ::testing::Each(0x4040))
        << "rank " << comm.rank();
  });
}

}  // namespace
}  // namespace zerorun::testing
