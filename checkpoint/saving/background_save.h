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

#include "checkpoint/saving/save.h"
#include "checkpoint/saving/snapshot_queue.h"
#include "device/cpu/cpu_stream.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

// One asynchronous save. A thread of each rank writes the rank's file while training continues. A
// file gets its final name when it is complete; rank 0's thread waits for all names and then
// commits. So the threads do not need the communicator, which training uses. If ranks do not see
// each other's files (use_node_local_storage), the training thread commits.
class BackgroundSave {
 public:
  struct Job {
    int rank = 0;
    int world_size = 1;
    SaveOptions options;  // its buffers are rank 0's and are in `buffer_bytes`
    std::vector<std::byte> buffer_bytes;
    std::chrono::milliseconds peer_timeout{};  // how long rank 0 waits for files of other ranks
  };
  // Shared by all saves, one after the other. They must outlive this object.
  struct Resources {
    std::span<std::byte> memory;  // for the snapshot
    CpuStream& thread;
  };
  BackgroundSave(PreparedSave save, Job job, Resources resources);
  // Waits for the thread. Removes the files of a save that was not committed.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Copies the engine's states. Returns when they may change again.
  void take_snapshot(Device& device);

  bool is_done() const { return done_; }  // committed, or failed
  bool has_failed() const { return failed_; }
  std::string place() const { return save_.folder.place().string(); }
  // Waits until this rank's file is written. Throws the error of writing it.
  void wait_written() { written_.get_future().get(); }
  // Waits for the commit by rank 0's thread. Throws its error.
  void wait_committed() { committed_.get_future().get(); }
  // True if the ranks have to call commit_together() after all have written, because hosts do not
  // see each other's files.
  bool needs_all() const { return job_.options.node_local; }
  // Commits the save. Collective; called on the training thread.
  void commit_together(EngineStates& engine, Communicator& comm);
  // Removes the files of a save that failed.
  void discard();
  // Makes the thread stop at the next piece.
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
