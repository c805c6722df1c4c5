#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/group_options.h"
#include "comm/nccl/library.h"
#include "comm/nccl/peers.h"
#include "comm/nccl/stall.h"
#include "device/cuda/runtime/cuda_stream.h"

namespace zerorun {

// One rank's membership in an NCCL communicator: made from a unique id that rank 0 puts into the
// store, watched by a thread from the first call on, and ended in order, or aborted.
//
// The thread looks for errors that NCCL meets on its own, for calls that wait for peers longer than
// the deadline, for peers that died or left, and for what peers report. After the first error
// everything fails with it.
class NcclGroup final : public CudaStream::Watched {
 public:
  explicit NcclGroup(const GroupOptions& options, int device);
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() override;

  void check() const override;

  // Calls `function(functions, communicator)`, which enqueues a collective, and watches it until
  // the point that `stream` has then reached. `what` names it in errors. It waits for peers from
  // when `stream` has got there: what this rank still computes before is no delay.
  using Enqueue = std::function<ncclResult_t(const NcclFunctions&, ncclComm_t)>;
  void run(const std::string& what, CudaStream& stream, const Enqueue& enqueue);

  // Memory that NCCL can read without staging; empty where this is not supported. Making and
  // freeing it may wait for the GPU, and so for peers: an abort must not have to wait for that.
  Buffer allocate(size_t nbytes, std::shared_ptr<NcclGroup> self);

  int ranks_of_this_host() const { return peers_.ranks_of_this_host(); }
  // GPUs of other ranks that are threads of this process.
  std::vector<int> devices_of_this_process() const { return peers_.devices_of_this_process(); }

  void abort(std::string_view reason) noexcept;
  // Makes `error` that of all ranks, unless there was one before.
  void set_error(std::string_view error) noexcept;
  // The error of this rank, or one that a peer reports; empty: there is none.
  std::string error() const;

 private:
  using Clock = std::chrono::steady_clock;
  // A call that may wait for peers.
  struct Call {
    std::string what;
    int64_t number = 0;  // of this rank's collectives; 0: it is none
    Event reached{};     // the stream has got there
    Event done{};
    std::optional<Clock::time_point> since{};  // from when on it was seen to wait
  };
  // The state of the first call, as the watcher sees it.
  struct Look {
    std::string what;
    int64_t number = 0;
    bool waits = false;
    bool late = false;
    std::optional<double> waited_s{};
    std::string error;
  };

  void join();
  void let_calls_block();
  // NCCL's own function, without the lock: it may wait for peers, which an abort ends.
  ncclResult_t call(const std::function<ncclResult_t(ncclComm_t)>& function);
  void begin(Call call);
  // The end of a call that began, for which a communicator that does not block has to be asked.
  // Throws CommError after an error of NCCL's, and when the watcher has ended the call.
  void finish_call(ncclResult_t result, std::string_view what);
  void* register_memory(void* data, size_t nbytes);
  void release(void* data, void* handle) noexcept;
  void forget_done();
  void watch();
  Look look();
  bool is_first(int64_t number);
  void fail_with(std::string text) noexcept;
  void leave() noexcept;
  void finalize();
  void stop_watching() noexcept;

  const NcclFunctions nccl_;
  const GroupOptions options_;
  const int device_;
  NcclPeers peers_;
  NcclStall stall_;
  std::mutex calls_;          // held from a call of NCCL until NCCL is done with it
  int64_t made_ = 0;          // collectives; guarded by calls_
  mutable std::mutex mutex_;  // guards all below; never held for long
  std::condition_variable changed_;
  ncclComm_t comm_ = nullptr;    // null after an abort
  std::optional<Call> calling_;  // NCCL is not done with it
  std::deque<Call> pending_;
  std::string error_;
  bool closing_ = false;
  std::thread watcher_;
};

}  // namespace zerorun
