// Each entry point of the CUDA libraries failing once under an engine, and under its communicators:
// see failing_calls.h.

#include <ostream>

#include "comm/device_communicator.h"
#include "comm/nccl/communicator.h"
#include "device/cuda/runtime/current_device.h"
#include "tests/device/cuda/failing_calls.h"
#include "tests/zero/stream_program.h"
#include "zerorun/engine.h"

namespace zerorun::testing::engine_failure {
namespace {

using Which = FailingCalls::Which;

enum class Where { nccl, shared_gpu };

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
    const CommunicatorOptions options{.rank = rank,
                                      .world_size = kRanks,
                                      .store = store,
                                      .timeout = FailingCalls::kDeadline,
                                      .device = device};
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
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the step has begun
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

}  // namespace
}  // namespace zerorun::testing::engine_failure
