#include "device/cuda/runtime/cuda_stream.h"
#include "tests/zero/cuda/transports.h"
#include "tests/zero/stream_program.h"
#include "zerorun/out_of_memory.h"

namespace zerorun::testing::failed_gather {
namespace {

constexpr int64_t kWidth = 64;

Config config_of(int64_t prefetch) {
  Config config = gathering_config(3);
  config.zero.overlap_comm = true;
  config.zero.reduce_bucket_size = kWidth * kWidth;
  config.zero.prefetch_bucket_size = prefetch;
  config.share_parameters = true;
  return config;
}

// Module "a" of one bucket, "b" of two.
std::vector<ParameterSpec> specs() {
  return {{"a.weight", {kWidth, kWidth}, "a"},
          {"b.weight", {kWidth, kWidth}, "b"},
          {"b.other", {kWidth, kWidth}, "b", 0, false, ""}};
}

void fill_with_ids(Engine& engine) {
  engine.initialize_parameters([](ParameterId id, int64_t, std::span<float> out) {
    std::fill(out.begin(), out.end(), static_cast<float>(id + 1));
  });
}

class FailedGatherMemoryTest : public FakeCudaTest {
 protected:
  // One rank's engine, whose memory for full parameters is refused at the `refused_`th request.
  void make_engine(int64_t prefetch) {
    device_ = std::make_shared<CudaDevice>(0, 0);
    comm_ = make_nccl_communicator({.device = device_});
    engine_ = Engine::create(config_of(prefetch), *device_, *comm_, specs(), ToyModel::groups());
    fill_with_ids(*engine_);
    engine_->hooks().use_full_memory([this](int /*bucket*/, size_t nbytes) {
      if (++requests_ == refused_ && broken_) throw DeviceError("the GPU does not work any more");
      if (requests_ == refused_) throw OutOfMemory("out of memory");
      return device_->allocate(nbytes, MemoryCategory::buckets);
    });
  }
  void TearDown() override {
    engine_.reset();
    comm_.reset();
    device_.reset();
    FakeCudaTest::TearDown();
  }
  void gather(const char* module) { engine_->gather(engine_->module_id(module)); }
  void release(const char* module) { engine_->release(engine_->module_id(module)); }
  // One that has learned the order of its modules, and has gathered nothing ahead.
  void make_prefetching_engine() {
    make_engine(1 << 20);
    for (int pass = 0; pass < 3; ++pass) {
      for (const char* module : {"a", "b"}) visit(*engine_, module);
    }
    fill_with_ids(*engine_);
  }
  void refuse(int nth, bool broken = false) {
    requests_ = 0;
    refused_ = nth;
    broken_ = broken;  // not for lack of memory
  }
  void use_b() {
    gather("b");
    for (const ParameterId id : {1, 2}) {
      EXPECT_THAT(downloaded(*device_, engine_->parameter(id)),
                  ::testing::Each(static_cast<float>(id + 1)));
    }
    release("b");
  }

  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<Communicator> comm_;
  std::unique_ptr<Engine> engine_;
  int requests_ = 0;
  int refused_ = 0;
  bool broken_ = false;
};

TEST_F(FailedGatherMemoryTest, AGatherThatFailsOnceCanBeRepeated) {
  make_engine(0);
  refuse(2);  // of b's two
  EXPECT_THROW(gather("b"), DeviceError);
  use_b();
}

// Ranks that gather the next module already must not be left waiting for one that has no room for
// it yet.
TEST_F(FailedGatherMemoryTest, AGatherAheadWithoutMemoryGoesToTheHostUntilItsUse) {
  make_prefetching_engine();
  refuse(3);  // a, and the first of b's two; not the second
  const int64_t pinned = live_bytes(*engine_, MemoryCategory::pinned);
  gather("a");
  EXPECT_EQ(live_bytes(*engine_, MemoryCategory::pinned) - pinned,
            2 * kWidth * kWidth * int64_t{sizeof(float)});
  release("a");
  refuse(2);  // no room at the use either, for one of them
  EXPECT_THROW(gather("b"), DeviceError);
  use_b();
  EXPECT_EQ(live_bytes(*engine_, MemoryCategory::pinned), pinned);
}

TEST_F(FailedGatherMemoryTest, AnotherErrorOfAGatherAheadIsThatOfTheGatherThatAskedForIt) {
  make_prefetching_engine();
  refuse(3, /*broken=*/true);
  EXPECT_THROW(gather("a"), DeviceError);
  use_b();
}

TEST_F(FailedGatherMemoryTest, WhatWasGatheredToTheHostAndIsNotUsedGoes) {
  make_prefetching_engine();
  const int64_t pinned = live_bytes(*engine_, MemoryCategory::pinned);
  refuse(2);
  gather("a");
  release("a");
  EXPECT_GT(live_bytes(*engine_, MemoryCategory::pinned), pinned);
  fill_with_ids(*engine_);
  EXPECT_EQ(live_bytes(*engine_, MemoryCategory::pinned), pinned);
  use_b();
}

// Rank 1 has room for little more than its largest module.
TEST_F(FailedGatherMemoryTest, OneRankWithLessMemoryThanItsPeersTrainsAsBefore) {
  fake_.set_devices(2);
  const auto train = [](bool scarce) {
    std::array<uint64_t, 2> hashes{};
    int64_t parked = 0;
    const ToyJob job{.config = stream_config({3}), .connect = on(Where::nccl)};
    run_engines(job, [&](Engine& engine, Communicator& comm) {
      const int rank = comm.rank();
      Device& device = engine.device();
      const auto live = std::make_shared<size_t>(0);
      const int64_t pinned = live_bytes(engine, MemoryCategory::pinned);
      engine.hooks().use_full_memory([&device, live, scarce, rank](int, size_t nbytes) {
        constexpr size_t kRoom = 10000;  // the largest module takes most of it
        if (scarce && rank == 1 && *live + nbytes > kRoom) throw OutOfMemory("out of memory");
        *live += nbytes;
        const auto block =
            std::make_shared<Buffer>(device.allocate(nbytes, MemoryCategory::buckets));
        return Buffer(block->data(), nbytes, [block, live, nbytes] { *live -= nbytes; });
      });
      StreamProgram program(engine, rank);
      for (int step = 0; step < 4; ++step) program.step();
      hashes.at(static_cast<size_t>(rank)) = engine.states().parameter_hash();
      if (rank == 1) parked = peak_bytes(engine, MemoryCategory::pinned) - pinned;
    });
    EXPECT_EQ(hashes[0], hashes[1]);
    EXPECT_EQ(parked > 0, scarce);
    return hashes[0];
  };
  EXPECT_EQ(train(true), train(false));
}

TEST_F(FailedGatherMemoryTest, AnErrorAfterTheLastGatherIsSaidWhenTheEngineEnds) {
  fake_.set_devices(2);
  const auto store = make_memory_store();
  std::barrier<> both(2);
  ::testing::internal::CaptureStderr();
  run_threads(2, [&](int rank) {
    CommunicatorOptions options{.rank = rank, .world_size = 2, .store = store};
    options.timeout = std::chrono::milliseconds(300);
    options.device = std::make_shared<CudaDevice>(rank, 0);
    auto comm = make_nccl_communicator(options);
    auto engine = Engine::create(config_of(0), *options.device, *comm, specs(), ToyModel::groups());
    fill_with_ids(*engine);
    both.arrive_and_wait();
    if (rank == 0) {
      engine->gather(engine->module_id("a"));  // the peer never comes
      engine->release(engine->module_id("a"));
      cudaStreamSynchronize(cuda_stream(options.device->inline_stream()).handle());
      engine.reset();
      comm.reset();
    }
    both.arrive_and_wait();
    if (comm) comm->abort("over");
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ContainsRegex("rank 0.*a[.]weight.*what was computed since then is wrong"));
}

}  // namespace
}  // namespace zerorun::testing::failed_gather
