#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/saving/prepared_save.h"
#include "checkpoint/saving/snapshot_queue.h"
#include "device/cpu/cpu_stream.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

// One save whose files are written by a thread beside the training, on each rank. A rank's file
// gets its name when it is complete, by which rank 0's thread knows that it may commit; so neither
// needs the communicator, which belongs to the training. Where ranks do not see each other's files,
// the training commits.
class BackgroundSave {
 public:
  struct Job {
    int rank = 0;
    int world_size = 1;
    SaveOptions options;  // whose buffers are rank 0's, and lie in `buffer_bytes`
    std::vector<std::byte> buffer_bytes;
    std::chrono::milliseconds peer_timeout{};  // of rank 0, for the files of the others
  };
  // Of all saves, one after the other; they must outlive this.
  struct Resources {
    std::span<std::byte> memory;  // of the pieces of the snapshot
    CpuStream& thread;
  };
  BackgroundSave(PreparedSave save, Job job, Resources resources);
  // Waits for the thread; what is not committed by then is removed.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Copies the engine's states; returns when they may change again.
  void take_snapshot(Device& device);

  bool is_done() const { return done_; }  // committed, or failed
  bool has_failed() const { return failed_; }
  std::string place() const { return save_.folder.place().string(); }
  // Waits for this rank's file. Throws its error.
  void wait_written() { written_.get_future().get(); }
  // Waits for the commit, which is rank 0's, and throws its error.
  void wait_committed() { committed_.get_future().get(); }
  // True if the ranks have to call commit_together() once all have written: hosts do not see each
  // other's files.
  bool needs_all() const { return job_.options.node_local; }
  // Collective, from the training's thread.
  void commit_together(EngineStates& engine, Communicator& comm);
  // Removes what ranks have written of a save that failed.
  void discard();
  // The thread stops at the next piece.
  void cancel();

 private:
  void copy_states(Device& device, Stream& stream);
  void run() noexcept;
  void write_file();
  void commit();
  Manifest::ShardFile wait_for_peer(int rank);

  PreparedSave save_;
  const Job job_;
  Manifest::ShardFile own_;
  SnapshotQueue queue_;
  std::promise<void> written_;
  std::promise<void> committed_;
  std::atomic<bool> done_ = false;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::condition_variable cancelled_;
  bool is_cancelled_ = false;
  CpuStream& thread_;
};

}  // namespace zerorun
