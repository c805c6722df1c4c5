#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "comm/nccl_library.h"
#include "device/cuda/cuda_stream.h"
#include "zerorun/communicator.h"

namespace zerorun {

// One rank's membership in an NCCL communicator: made from a unique id that rank 0 puts into the
// store, watched by a thread while collectives run, and ended in order, or aborted.
//
// The thread looks for errors that NCCL meets on its own, for collectives that take longer than
// the deadline, and for what peers report in the store. After the first error everything fails
// with it.
class NcclGroup final : public CudaStream::Watched {
 public:
  explicit NcclGroup(const CommunicatorOptions& options, int device);
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() override;

  void check() const override;

  // Calls `function(functions, communicator)`, which enqueues a collective, and watches it until
  // the point that `stream` has then reached. `what` names it in errors.
  using Enqueue = std::function<ncclResult_t(const NcclFunctions&, ncclComm_t)>;
  void run(const std::string& what, CudaStream& stream, const Enqueue& enqueue);

  // Memory that NCCL can read without staging; empty where this is not supported. Making and
  // freeing it may wait for the GPU, and so for peers: an abort must not have to wait for that.
  Buffer allocate(size_t nbytes, std::shared_ptr<NcclGroup> self);

  void abort(std::string_view reason) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    std::string what;
    Event done;
    Clock::time_point since;  // it was first in the queue
  };

  void join();
  void settle(ncclResult_t result, std::string_view what);
  void enqueue_and_settle(const std::string& what, const Enqueue& enqueue);
  // Tells the peers what this rank waits for; the error that says where they are.
  std::string explain_delay(std::string_view what);
  void forget_done();
  void watch();
  // What is wrong with the first pending collective, or empty.
  std::string examine();
  std::string ask_peers();
  void fail_with(std::string text) noexcept;
  void end() noexcept;

  const NcclFunctions nccl_;
  const CommunicatorOptions options_;
  const int device_;
  std::mutex calls_;          // held from a call of NCCL until NCCL is done with it
  mutable std::mutex mutex_;  // guards all below; never held for long
  std::condition_variable changed_;
  ncclComm_t comm_ = nullptr;  // null after an abort
  bool enqueuing_ = false;     // NCCL is not done with a call
  std::deque<Pending> pending_;
  std::string error_;
  bool closing_ = false;
  std::thread watcher_;
};

}  // namespace zerorun
