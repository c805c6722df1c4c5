#include "checkpoint/loading/device_copies.h"
#include "checkpoint/saving/commit.h"
#include "checkpoint/saving/prepared_save.h"
#include "checkpoint/saving/shard_writer.h"
#include "comm/agreement.h"
#include "core/check.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

namespace {

// Writes this rank's part into its file, through a small buffer where it is not in host memory.
Manifest::ShardFile write_shard(EngineStates& engine, const PreparedSave& save, int rank) {
  ShardWriter writer(save.folder.shard(rank), save.plan.tensors());
  DeviceCopies copies(engine.device());
  save.plan.read([&](size_t tensor, TensorView data, bool on_host) {
    if (!on_host && engine.device().is_host()) {  // it stays there until the next step
      return writer.write_in_place(tensor, 0, {data.data, data.nbytes()});
    }
    copies.download(data, on_host,
                    [&writer, tensor](uint64_t offset, std::span<const std::byte> bytes) {
                      writer.write(tensor, offset, bytes);
                    });
  });
  copies.finish();
  return writer.finish();
}

}  // namespace

uint64_t checkpoint_nbytes(EngineStates& engine) { return ShardPlan(engine).nbytes(); }

void save_checkpoint(EngineStates& engine, Communicator& comm, const SaveOptions& options) {
  Agreement agreement(comm, engine.device().inline_stream());
  PreparedSave save = prepare_save(engine, comm, options);
  const bool is_first = agreement.rank() == 0;
  Manifest::ShardFile own;
  try {
    agreement.run("save: write", [&] {
      try {
        save.folder.check_seen();
        own = write_shard(engine, save, agreement.rank());
        if (is_first) save.manifest.buffers = write_buffers(save.folder.buffers(), options.buffers);
      } catch (const IoError& error) {
        fail<IoError>("{}; {}", error.what(), save.folder.disk_use());
      }
    });
    commit_save(engine, comm, save, own, options);
  } catch (...) {
    if (save.disks.leads(agreement.rank())) save.folder.discard();
    throw;
  }
}

}  // namespace zerorun
