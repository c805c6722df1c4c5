// What the parts of the fake NCCL share.
//
// Return values and their order were read in NCCL's sources of 2.27 and 2.29.2, between which they
// do not differ; the file is named above each function, and a version that does. What the real one
// refuses, or what corrupts it, is also a violation, as callers may ignore what is returned.
#pragma once

#include <nccl.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "testing/fake_cuda/nccl_ranks.h"
#include "testing/fake_cuda/runtime_call.h"

namespace zerorun::fake::of_nccl {

inline ncclResult_t enter(const char* name) {
  return static_cast<ncclResult_t>(seen().enter(name));
}
inline ncclResult_t enter(const char* name, cudaStream_t stream) {
  return static_cast<ncclResult_t>(seen().enter(name, stream_of(stream)));
}

// A group of this thread: how deep it is in groups, and the error of a call within it.
inline thread_local int group_depth = 0;
inline thread_local ncclResult_t group_error = ncclSuccess;

// An error within a group ends the whole of it: ncclGroupErrCheck of src/include/group.h.
inline ncclResult_t told(ncclResult_t result) {
  if (group_depth > 0 && result != ncclSuccess) group_error = result;
  return result;
}

// Collectives hold the communicator's state: it may be aborted while they wait.
using Shared = std::shared_ptr<ncclComm>;
inline std::mutex comms_mutex;
inline std::map<ncclComm_t, Shared> comms;

inline void add(const Shared& comm) {
  seen().hold("NCCL communicators", comm.get());
  const std::lock_guard lock(comms_mutex);
  comms[comm.get()] = comm;
}

// Null, and a violation, where the real one reads memory that is freed.
inline Shared alive(ncclComm_t comm, const std::string& what) {
  const std::lock_guard lock(comms_mutex);
  const auto found = comms.find(comm);
  if (found != comms.end()) return found->second;
  seen().violate(what + " on a communicator that has ended");
  return nullptr;
}

// Within a group the real ones are only queued.
inline void expect_no_group(const char* what) {
  if (group_depth > 0) seen().violate(std::string(what) + " within a group");
}

inline void join_thread(ncclComm& comm) {
  std::thread job;
  {
    const std::lock_guard lock(comm.mutex);
    job.swap(comm.job);
  }
  if (job.joinable()) job.join();
}

// How the communicator is; once it is done its thread is joined (ncclCommGetAsyncError).
inline ncclResult_t state_of(ncclComm& comm) {
  const ncclResult_t state = comm.state;
  if (state == ncclSuccess) join_thread(comm);
  return state;
}

// ncclCommEnsureReady of src/init.cc: not before the last call is done.
inline ncclResult_t ensure_ready(ncclComm& comm, const std::string& what) {
  const ncclResult_t state = state_of(comm);
  if (state != ncclInProgress) return state;
  seen().violate(what + " on a communicator that is still in progress");
  return ncclInvalidArgument;
}

}  // namespace zerorun::fake::of_nccl

#undef ENTER
#define ENTER(...)                                                               \
  const zerorun::fake::InFake in_fake;                                           \
  do {                                                                           \
    if (const ncclResult_t planned = enter(__func__ __VA_OPT__(, ) __VA_ARGS__); \
        planned != ncclSuccess) {                                                \
      return told(planned);                                                      \
    }                                                                            \
  } while (false)
