// What the parts of the fake NCCL share.
//
// Return values and their order were read in NCCL's sources of 2.27 and 2.29.2, between which they
// do not differ; the file is named above each function, and a version that does. What the real one
// refuses, or what corrupts it, is also a violation, as callers may ignore what is returned.
#pragma once

#include <nccl.h>

#include "testing/fake_cuda/runtime_call.h"
#include "tests/comm/reference.h"

// Ranks that communicate through it, and what a collective of theirs computes.
namespace zerorun::fake {

using zerorun::testing::Bytes;

struct Operation {
  std::string name;
  const void* in = nullptr;
  Bytes input{};  // what `in` held when this rank's stream got there
  void* out = nullptr;
  size_t count = 0;  // of the caller's argument
  ncclDataType_t type = ncclUint8;
  int detail = 0;  // root, or operation
  // Their place in registered memory; kElsewhere: it is none.
  static constexpr int64_t kElsewhere = -1;
  int64_t in_place = kElsewhere;
  int64_t out_place = kElsewhere;

  // NCCL wants registered memory from all ranks, at one offset, or from none.
  bool lies_like(const Operation& other) const {
    return in_place == other.in_place && out_place == other.out_place;
  }
  bool matches(const Operation& other) const {
    return name == other.name && count == other.count && type == other.type &&
           detail == other.detail;
  }
};

// The ranks of one unique id.
struct Group {
  explicit Group(int world_size) : ranks(world_size), operations(static_cast<size_t>(ranks)) {}

  std::mutex mutex;
  std::condition_variable changed;
  const int ranks;
  int joined = 0;
  std::vector<int> devices{};      // of those who have joined
  int64_t arrived = 0;             // at meeting points, over all
  int connecting = 0;              // to their peers, with a first collective that blocks
  int finalizing = 0;              // also those that have
  std::shared_ptr<Group> split{};  // the same ranks, in a communicator made from this one
  std::vector<Operation> operations;
  // By sender and receiver.
  std::set<std::pair<int, int>> linked{};  // who has a first message for whom
  std::map<std::pair<int, int>, std::deque<Bytes>> messages{};
};

inline DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return DType::uint8;
    case ncclInt64:
      return DType::int64;
    case ncclFloat16:
      return DType::fp16;
    case ncclFloat32:
      return DType::fp32;
    case ncclBfloat16:
      return DType::bf16;
  }
  return DType::uint8;
}

// Of a rank's part and, where `name` has all ranks' parts, of all.
inline size_t bytes_of(const Group& group, const Operation& operation, const char* name) {
  const size_t bytes = operation.count * zerorun::size_of(dtype_of(operation.type));
  return operation.name == name ? bytes * static_cast<size_t>(group.ranks) : bytes;
}
inline size_t input_bytes(const Group& group, const Operation& operation) {
  return bytes_of(group, operation, "ncclReduceScatter");
}
inline size_t output_bytes(const Group& group, const Operation& operation) {
  return bytes_of(group, operation, "ncclAllGather");
}

// The result for one rank, from all ranks' inputs.
inline Bytes compute(const Group& group, const Operation& mine, int rank) {
  const DType dtype = dtype_of(mine.type);
  const size_t bytes = mine.count * zerorun::size_of(dtype);
  if (mine.name == "ncclBroadcast") return group.operations[static_cast<size_t>(mine.detail)].input;
  std::vector<Bytes> inputs;
  for (const Operation& operation : group.operations) inputs.push_back(operation.input);
  Bytes result;
  if (mine.name == "ncclAllGather") {
    for (const Bytes& part : inputs) result.insert(result.end(), part.begin(), part.end());
    return result;
  }
  result.resize(inputs.front().size());
  const ReduceOp op = mine.detail == ncclMax   ? ReduceOp::max
                      : mine.detail == ncclMin ? ReduceOp::min
                                               : ReduceOp::sum;
  zerorun::testing::reference_reduce(inputs, dtype, op, zerorun::Output::overwrite, dtype, result);
  if (mine.name != "ncclReduceScatter") return result;
  const auto begin = result.begin() + static_cast<ptrdiff_t>(bytes) * rank;
  return {begin, begin + static_cast<ptrdiff_t>(bytes)};
}

}  // namespace zerorun::fake

// One rank of a communicator. Collectives and NCCL's own threads hold it: it may be aborted while
// they wait.
struct ncclComm {
  std::shared_ptr<zerorun::fake::Group> group;
  int rank = 0;
  int device = 0;
  bool blocking = false;
  int64_t meetings = 0;    // that this rank's collectives have asked for
  bool aborted = false;    // guarded by the group's mutex, like the next
  bool connected = false;  // to its peers
  std::atomic<bool> finalized = false;
  std::atomic<bool> finalizing = false;
  // What ncclCommGetAsyncError tells: of a communicator that does not block, how its last call is.
  std::atomic<ncclResult_t> state = ncclSuccess;
  std::mutex mutex;                               // guards all below
  std::thread job;                                // NCCL's own, which performs the last call
  std::shared_ptr<ncclComm> child;                // that is being split off
  zerorun::Event last;                            // of its collectives
  std::map<const std::byte*, size_t> registered;  // bytes; ends with the communicator

  // The place of `data` in registered memory.
  int64_t place_of(const void* data) {
    const std::lock_guard lock(mutex);
    const auto* const at = static_cast<const std::byte*>(data);
    auto found = registered.upper_bound(at);
    if (found == registered.begin()) return zerorun::fake::Operation::kElsewhere;
    --found;
    const auto offset = static_cast<size_t>(at - found->first);
    return offset < found->second ? static_cast<int64_t>(offset)
                                  : zerorun::fake::Operation::kElsewhere;
  }
};

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
