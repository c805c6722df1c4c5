// Each entry point of the CUDA libraries failing once under an engine, and under its communicators:
// see failing_calls.h.
#include <ostream>

#include "device/cuda/runtime/current_device.h"
#include "tests/device/cuda/failing_calls.h"
#include "tests/zero/cuda/transports.h"
#include "tests/zero/stream_program.h"
#include "zerorun/out_of_memory.h"

namespace zerorun::testing::engine_failure {
namespace {

using Which = FailingCalls::Which;

struct Setting {
  Where where = Where::nccl;
  Which which = Which::first;  // over all settings, all of them
  StreamSetting engine{};
};
void PrintTo(const Setting& setting, std::ostream* out) {
  *out << (setting.where == Where::nccl ? "NCCL, " : "shared GPU, ")
       << ::testing::PrintToString(setting.engine);
}

constexpr int kRanks = 2;

// The ranks' devices; as a launcher would, it ends those whose peer has none.
std::shared_ptr<CudaDevice> make_device(int index, int rank, const std::shared_ptr<Store>& store) {
  const auto key = [](int of) { return "device/" + std::to_string(of); };
  std::shared_ptr<CudaDevice> device;
  try {
    device = std::make_shared<CudaDevice>(index, 0);
  } catch (const DeviceError&) {
    store->set(key(rank), "none");
    throw;
  }
  store->set(key(rank), "made");
  if (store->get(key(1 - rank), FailingCalls::kDeadline) == "made") return device;
  throw DeviceError("a peer has no device");
}

// A rank's device and communicator.
struct Rank {
  Rank(Where where, int rank, const std::shared_ptr<Store>& store)
      : device(make_device(where == Where::nccl ? rank : 0, rank, store)) {
    const CommunicatorOptions options =
        options_of_rank(rank, kRanks, store, FailingCalls::kDeadline, device);
    comm = where == Where::nccl ? make_nccl_communicator(options)
                                : make_host_staged_communicator(options);
  }

  std::shared_ptr<CudaDevice> device;
  std::shared_ptr<Communicator> comm;
};

// Every collective, one with several in it, and host memory.
uint64_t communicate(Where where, int rank, const std::shared_ptr<Store>& store) {
  const Rank own(where, rank, store);
  Communicator& comm = *own.comm;
  Stream& stream = own.device->inline_stream();
  const Buffer full = *comm.allocate(1024, Sharing::per_rank);
  const Buffer part = own.device->allocate(1024, MemoryCategory::buckets);
  const Drain drain{*own.device};
  const TensorView in = view_of(full, DType::bf16, 8 * kRanks);
  const TensorView out = view_of(part, DType::fp32, 8);
  own.device->fill(stream, in, 1.0F);
  own.device->fill(stream, out, 0.5F);
  comm.reduce_scatter(in, out, Output::accumulate, stream, "bucket 3");
  comm.all_reduce(in, in, ReduceOp::sum, Output::overwrite, stream, "bucket 4");
  comm.coalesced(stream, [&] {
    comm.all_gather(in.slice(8 * rank, 8), in, Sync::collective, stream, "bucket 5");
    comm.all_gather(out.slice(2 * rank, 2), out.slice(0, 2 * kRanks), Sync::collective, stream,
                    "bucket 6");
  });
  comm.broadcast(in, 0, stream, "start");
  int64_t word = 3 + rank;
  const TensorView on_host = view_of(std::span(&word, 1));
  comm.all_reduce(on_host, on_host, ReduceOp::max, Output::overwrite, stream, "largest");
  comm.barrier(stream, "end").synchronize();
  std::array<float, 8> values{};
  own.device->download(stream, out, values.data());
  stream.synchronize();
  return static_cast<uint64_t>(word) * 1000 + static_cast<uint64_t>(values[0] * 16);
}

// Module "a" of one bucket, "b" of two.
std::vector<ParameterSpec> specs() {
  return {{"a.weight", {20, 19}, "a"},
          {"b.weight", {310}, "b"},
          {"b.bias", {7}, "b"},
          {"b.frozen", {40}, "b", 0, false}};
}

uint64_t train(const Setting& setting, int rank, const std::shared_ptr<Store>& store) {
  const Rank own(setting.where, rank, store);
  const Config config = stream_config(setting.engine);
  const std::vector<ParameterGroup> groups(1);
  const auto engine = Engine::create(config, *own.device, *own.comm, specs(), groups);
  engine->initialize_parameters([](ParameterId id, int64_t begin, std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = 0.25F * static_cast<float>(id) + 0.001F * static_cast<float>(begin + int64_t(i));
    }
  });
  StreamProgram program(*engine, rank);
  for (int step = 0; step < 2; ++step) {
    program.batch();
    engine->step();
  }
  return engine->states().parameter_hash();
}

class BrokenDeviceTest : public FakeCudaTest {};

TEST_F(BrokenDeviceTest, WorkThatFailsOnAGpuEndsEveryRankByTheNextStep) {
  fake_.set_devices(kRanks);
  const auto store = make_memory_store();
  run_threads(kRanks, [&](int rank) {
    const Rank own(Where::nccl, rank, store);
    const Config config = stream_config({2});
    const std::vector<ParameterGroup> groups(1);
    const auto engine = Engine::create(config, *own.device, *own.comm, specs(), groups);
    StreamProgram program(*engine, rank);
    program.batch();
    // The host does not wait for the update's work, so the next step may be the first to meet it.
    const auto two_steps = [&] {
      engine->step();
      program.batch();
      engine->step();
    };
    if (rank == 1) {
      EXPECT_THROW(two_steps(), CommError);
      return;
    }
    {
      const CurrentDevice current(rank);
      fake::submit(cuda_stream(own.device->inline_stream()).handle(), [&] {
        std::this_thread::sleep_for(20ms);  // the step has begun
        fake_.break_device(0, cudaErrorIllegalAddress);
      });
    }
    EXPECT_THROW(two_steps(), DeviceError);
    own.comm->abort("its GPU failed");
  });
}

class CommunicatorFailureTest : public FakeCudaTest, public ::testing::WithParamInterface<Where> {};

TEST_P(CommunicatorFailureTest, EveryRefusedCallIsATypedErrorOnEveryRankOrWithoutConsequence) {
  FailingCalls calls(GetParam() == Where::nccl ? "NCCL" : "shared GPU", kRanks,
                     [](int rank, const std::shared_ptr<Store>& store) {
                       return communicate(GetParam(), rank, store);
                     });
  for (const Which which : {Which::first, Which::middle, Which::last}) {
    EXPECT_GT(calls.fail_each(which), 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, CommunicatorFailureTest,
                         ::testing::Values(Where::nccl, Where::shared_gpu));

class EngineFailureTest : public FakeCudaTest, public ::testing::WithParamInterface<Setting> {};

TEST_P(EngineFailureTest, EveryRefusedCallIsATypedErrorOnEveryRankOrWithoutConsequence) {
  FailingCalls calls(
      ::testing::PrintToString(GetParam()), kRanks,
      [](int rank, const std::shared_ptr<Store>& store) { return train(GetParam(), rank, store); });
  EXPECT_GT(calls.fail_each(GetParam().which), 20);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, EngineFailureTest,
    // Each stage on each transport, and each call with each home of the optimizer's states.
    ::testing::Values(Setting{Where::nccl, Which::first, {0}},
                      Setting{Where::nccl, Which::middle, {1, 0.5}},
                      Setting{Where::nccl, Which::last, {2, 1.0}},
                      Setting{Where::nccl, Which::middle, {3, 1.0, OffloadDevice::cpu}},
                      Setting{Where::shared_gpu, Which::last, {0}},
                      Setting{Where::shared_gpu, Which::first, {1, 0.5}},
                      Setting{Where::shared_gpu, Which::middle, {2}},
                      Setting{Where::shared_gpu, Which::last, {3, 0.5, OffloadDevice::cpu}},
                      Setting{Where::shared_gpu, Which::first, {3, 1.0, OffloadDevice::cpu}}));

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
std::vector<ParameterSpec> wide_specs() {
  return {{"a.weight", {kWidth, kWidth}, "a"},
          {"b.weight", {kWidth, kWidth}, "b"},
          {"b.other", {kWidth, kWidth}, "b", 0, false, ""}};
}

void fill_with_ids(Engine& engine) {
  engine.initialize_parameters([](ParameterId id, int64_t, std::span<float> out) {
    std::fill(out.begin(), out.end(), static_cast<float>(id + 1));
  });
}

struct FailedGatherMemoryTest : FakeCudaTest {
  // One rank's engine, whose memory for full parameters is refused at the `refused_`th request.
  void make_engine(int64_t prefetch) {
    device_ = std::make_shared<CudaDevice>(0, 0);
    comm_ = make_nccl_communicator({.device = device_});
    engine_ =
        Engine::create(config_of(prefetch), *device_, *comm_, wide_specs(), ToyModel::groups());
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

// Ranks that gather the next module must not be left waiting for one that has no room for it yet.
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
    const auto device = std::make_shared<CudaDevice>(rank, 0);
    auto comm = make_nccl_communicator(options_of_rank(rank, 2, store, 300ms, device));
    auto engine = Engine::create(config_of(0), *device, *comm, wide_specs(), ToyModel::groups());
    fill_with_ids(*engine);
    both.arrive_and_wait();
    if (rank == 0) {
      engine->gather(engine->module_id("a"));  // the peer never comes
      engine->release(engine->module_id("a"));
      cudaStreamSynchronize(cuda_stream(device->inline_stream()).handle());
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
}  // namespace zerorun::testing::engine_failure
