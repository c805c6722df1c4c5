// Loading a checkpoint into the memory of GPUs, on fake CUDA libraries with delays: a missing wait
// would leave old values, or bring back the wrong ones.

#include "tests/checkpoint/temporary_directory.h"
#include "tests/zero/cuda/transports.h"
#include "zerorun/checkpoint.h"

namespace zerorun::testing::cuda_load {
namespace {

std::unique_ptr<Engine> make_engine(int stage, Communicator& comm, Device& device) {
  auto engine = Engine::create(toy_config(stage), device, comm, toy_specs(), ToyModel::groups());
  toy_initialize(*engine);
  return engine;
}

// Gives every element of the masters and states another value.
void write_states(Engine& engine, Device& device, float value) {
  for (const StateInterval& interval : engine.states().state_intervals()) {
    std::vector<TensorView> views = interval.states;
    if (!interval.master.empty()) views.push_back(interval.master);
    for (const TensorView& view : views) device.fill(device.inline_stream(), view, value += 0.25F);
  }
  engine.states().refresh_from_masters();
}

std::string bytes_of(Engine& engine, Device& device) {
  std::string all;
  for (const StateInterval& interval : engine.states().state_intervals()) {
    std::vector<TensorView> views = interval.states;
    views.insert(views.end(), {interval.param, interval.master});
    for (const TensorView& view : views) {
      std::string bytes(view.nbytes(), '\0');
      device.download(device.inline_stream(), view, bytes.data());
      device.inline_stream().synchronize();
      all += bytes;
    }
  }
  return all;
}

using CudaLoadTest = LateCudaTest<300>;

TEST_F(CudaLoadTest, LoadsEveryByteOrNone) {
  fake_.set_devices(2);
  for (const int stage : {0, 2, 3}) {
    const TemporaryDirectory directory;
    const ToyJob job{.connect = on(Where::nccl)};
    run_devices(job, [&](Device& device, Communicator& comm) {
      const int rank = comm.rank();
      const auto saving = make_engine(stage, comm, device);
      write_states(*saving, device, 1);
      save_checkpoint(saving->states(), comm, {.directory = directory.string()});
      const std::string saved = bytes_of(*saving, device);
      for (const bool is_fresh : {true, false}) {
        const auto engine = make_engine(stage, comm, device);
        if (!is_fresh) write_states(*engine, device, -7);
        const std::string before = bytes_of(*engine, device);
        if (rank == 0) flip_last_bit(directory);
        EXPECT_THAT([&] { load_checkpoint(engine->states(), comm, directory.string()); },
                    ThrowsMessage<CheckpointError>(HasSubstr("damaged")));
        EXPECT_TRUE(bytes_of(*engine, device) == before) << stage << is_fresh;
        if (rank == 0) flip_last_bit(directory);
        load_checkpoint(engine->states(), comm, directory.string());
        EXPECT_TRUE(bytes_of(*engine, device) == saved) << stage << is_fresh;
      }
    });
  }
}

}  // namespace
}  // namespace zerorun::testing::cuda_load
