#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group_options.h"
#include "comm/nccl/asking_thread.h"
#include "comm/nccl/handle.h"
#include "comm/nccl/library.h"
#include "comm/nccl/peers.h"
#include "comm/nccl/pending_calls.h"
#include "comm/stall_report.h"
#include "device/cuda/runtime/cuda_stream.h"

namespace zerorun {

// One rank's NCCL communicator. It is created from a unique id that rank 0 publishes in the store.
// It ends either in order (ncclCommFinalize) or by an abort (ncclCommAbort).
//
// From the first call on, the watching thread of JobState looks for asynchronous errors of NCCL,
// calls that wait for peers beyond the deadline, peers that died or left, and errors that peers
// report. After the first error every call throws it.
class NcclGroup final : public CudaStream::Watched {
 public:
  // `asking`: of all groups of a rank.
  NcclGroup(const GroupOptions& options, int device,
            std::shared_ptr<AskingThread> asking = AskingThread::make());
  ~NcclGroup() override;

  void check() const override;

  // Calls `enqueue(functions, communicator)`, which enqueues one collective on `stream`, whose
  // device is the current one, and watches it until the stream has completed it: that is the event
  // that is returned. The deadline counts from when `stream` reaches the collective, so earlier
  // computation of this rank does not count as waiting.
  using Enqueue = std::function<ncclResult_t(const NcclFunctions&, ncclComm_t)>;
  Event run(CallName name, CudaStream& stream, const Enqueue& enqueue);

  // Allocates memory registered with NCCL, which it can use without staging. Empty if this is not
  // supported. Allocating and freeing it may wait for the GPU, and so for peers; an abort must not
  // wait for either.
  Buffer allocate(size_t nbytes, std::shared_ptr<NcclGroup> self);

  // Of NCCL: 2.26.2 is 22602.
  int version() const { return version_; }

  int ranks_of_this_host() const { return peers_.ranks_of_this_host(); }
  // Numbers of the GPUs of other ranks that are threads of this process.
  std::vector<int> devices_of_this_process() const { return peers_.devices_of_this_process(); }

  // See Transport::check_peers.
  void check_peers(std::string_view what);
  // Reports `error` to the peers, and ends what NCCL does.
  void set_error(std::string_view error) noexcept;
  // The error of this job, or one that a peer has reported; empty: none.
  std::string error() const;

 private:
  using Clock = std::chrono::steady_clock;
  // The state of the oldest pending call, as the watching thread sees it.
  struct CallState {
    std::string what;
    int64_t number = 0;
    bool waits = false;
    bool late = false;
    std::optional<double> waited_s{};
    std::string error;
  };

  void join();
  void let_calls_block(const NcclPeers::Check& look);
  // Throws the error of this rank if there is one.
  ncclResult_t call(const NcclHandle::Function& function);
  void begin(PendingCall call);
  void begin(std::string_view name) { begin({.name = {.label = std::string(name)}}); }
  // Waits until NCCL has finished the call that has begun, which returned `result`: a communicator
  // that does not block may still be at it. Throws CommError after an error of NCCL, and if the
  // watching thread has aborted the call. `look`: throws to give up; null: only the watching thread
  // ends the wait.
  void finish_call(ncclResult_t result, const NcclPeers::Check& look = {});
  void* register_memory(void* data, size_t nbytes);
  void release(void* data, void* handle) noexcept;
  void drain() noexcept;
  std::string last_call() const;
  JobState::Clock::duration look() noexcept;
  void look_at_calls();
  // Prints on stderr, on one rank, that the last call waits for long.
  void warn(double waited_s);
  CallState oldest_call();
  bool is_first(int64_t number);
  // Ask CUDA, and so without mutex_, which may take long.
  void forget_done();
  void ask_cuda() noexcept;
  void fail_with(std::string_view text) noexcept;
  void end() noexcept;
  void leave() noexcept;
  void finalize(ncclComm_t comm);
  // True if some rank will not finalize its communicator.
  bool is_alone() const noexcept;

  const NcclFunctions nccl_;
  const GroupOptions options_;
  const int device_;
  int version_ = 0;
  const std::shared_ptr<AskingThread> asking_;
  NcclPeers peers_;
  StallInquiry inquiry_;
  std::optional<double> waited_s_{};  // in the last call; the watching thread's
  struct Calls {
    std::mutex mutex;  // held while NCCL processes a call
    int64_t made = 0;  // collectives; guarded by the mutex
  } calls_;
  NcclHandle comm_;           // taken away by an abort
  mutable std::mutex mutex_;  // guards all below; never held for long
  bool idle_ = true;          // until a call begins, the watching thread looks seldom
  PendingCalls pending_;
  bool ended_ = false;  // by an error, of which the peers know
  std::shared_ptr<void> watched_;
};

}  // namespace zerorun
