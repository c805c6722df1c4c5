#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/prepared_save.h"
#include "checkpoint/snapshot_queue.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

// One save whose files are written by a thread of its own, on each rank. A rank's file gets its
// name when it is complete, by which rank 0's thread knows that it may commit; so neither needs the
// communicator, which belongs to the training.
class BackgroundSave {
 public:
  struct Job {
    int rank = 0;
    int world_size = 1;
    bool update_latest = true;
    Retention keep;
    std::chrono::milliseconds peer_timeout{};  // of rank 0, for the files of the others
    std::vector<NamedTensor> buffers;          // rank 0's, whose bytes lie in `buffer_bytes`
    std::vector<std::byte> buffer_bytes;
  };
  // `memory` holds the pieces of the snapshot and must outlive this.
  BackgroundSave(PreparedSave save, Job job, std::span<std::byte> memory);
  // Ends the thread; what is not committed by then is removed.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Copies the engine's states; returns when they may change again.
  void take_snapshot(Device& device);

  bool is_done() const { return done_; }  // one way or the other
  bool has_failed() const { return failed_; }
  std::string place() const { return save_.folder.place().string(); }
  // Waits for this rank's file. Throws its error.
  void wait_written() { written_.get_future().get(); }
  // Waits for the commit, which is rank 0's, and throws its error.
  void wait_committed() { committed_.get_future().get(); }
  // Removes what ranks have written of a save that failed.
  void discard();
  // The thread stops at the next piece.
  void cancel();

 private:
  void run() noexcept;
  void write_file();
  void commit();
  Manifest::ShardFile wait_for_peer(int rank);

  PreparedSave save_;
  const Job job_;
  SnapshotQueue queue_;
  std::promise<void> written_;
  std::promise<void> committed_;
  std::atomic<bool> done_ = false;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::condition_variable cancelled_;
  bool is_cancelled_ = false;
  std::thread thread_;
};

}  // namespace zerorun
