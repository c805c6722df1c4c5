// A fake NCCL for ranks that are threads: collectives run on the ranks' streams, meet there, and
// read each other's memory. In the place of comm/nccl_library.cc, which opens the real library.
#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/nccl_library.h"
#include "tests/comm/reference.h"
#include "tests/cuda/fake/fake_cuda.h"

namespace {

using zerorun::DType;
using zerorun::ReduceOp;
using zerorun::fake::FakeCuda;
using zerorun::testing::Bytes;

struct Operation {
  std::string name;
  const void* in = nullptr;
  Bytes input{};  // what `in` held when this rank's stream got there
  void* out = nullptr;
  size_t count = 0;  // of the caller's argument
  ncclDataType_t type = ncclUint8;
  int detail = 0;  // root, or operation

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
  int64_t arrived = 0;  // at meeting points, over all
  std::vector<Operation> operations;
};

std::mutex groups_mutex;
std::map<std::string, std::weak_ptr<Group>> groups;

FakeCuda& seen() { return FakeCuda::instance(); }

ncclResult_t enter(const char* name, const void* stream = nullptr) {
  return static_cast<ncclResult_t>(seen().enter(name, stream));
}

#define ENTER(...)                                                               \
  do {                                                                           \
    if (const ncclResult_t planned = enter(__func__ __VA_OPT__(, ) __VA_ARGS__); \
        planned != ncclSuccess) {                                                \
      return planned;                                                            \
    }                                                                            \
  } while (false)

DType dtype_of(ncclDataType_t type) {
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

}  // namespace

struct ncclComm {
  std::shared_ptr<Group> group;
  int rank = 0;
  int64_t meetings = 0;  // that this rank's collectives have asked for
  bool aborted = false;  // guarded by the group's mutex
  bool finalized = false;
  std::set<const void*> registered;  // ends with the communicator
};

namespace {

// Collectives hold the communicator's state: it may be aborted while they wait.
using Shared = std::shared_ptr<ncclComm>;
std::mutex comms_mutex;
std::map<ncclComm_t, Shared> comms;

Shared find(ncclComm_t comm) {
  const std::lock_guard lock(comms_mutex);
  const auto found = comms.find(comm);
  return found == comms.end() ? nullptr : found->second;
}

// False when the rank's communicator was aborted.
bool meet(ncclComm& comm, int64_t meeting) {
  Group& group = *comm.group;
  std::unique_lock lock(group.mutex);
  ++group.arrived;
  group.changed.notify_all();
  group.changed.wait(lock, [&] { return comm.aborted || group.arrived >= meeting * group.ranks; });
  return !comm.aborted;
}

size_t input_bytes(const Group& group, const Operation& operation) {
  const size_t bytes = operation.count * zerorun::size_of(dtype_of(operation.type));
  return operation.name == "ncclReduceScatter" ? bytes * static_cast<size_t>(group.ranks) : bytes;
}

// The result for one rank, from all ranks' inputs.
Bytes compute(const Group& group, const Operation& mine, int rank) {
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

ncclResult_t start(Operation operation, ncclComm_t handle, cudaStream_t stream) {
  const Shared comm = find(handle);
  if (!comm || comm->aborted || comm->finalized) {
    seen().violate(operation.name + " on a communicator that has ended");
    return ncclInvalidArgument;
  }
  const int64_t first = ++comm->meetings;
  comm->meetings += 2;
  zerorun::fake::submit(stream, [comm, operation = std::move(operation), first] {
    Group& group = *comm->group;
    {
      const std::lock_guard lock(group.mutex);
      if (comm->aborted) return;
      Operation& mine = group.operations[static_cast<size_t>(comm->rank)];
      mine = operation;
      const auto* in = static_cast<const std::byte*>(operation.in);
      mine.input.assign(in, in + input_bytes(group, operation));
    }
    if (!meet(*comm, first)) return;
    for (const Operation& other : group.operations) {
      if (!operation.matches(other)) {
        seen().violate("ranks differ: " + operation.name + " and " + other.name);
      }
    }
    const Bytes result = compute(group, operation, comm->rank);
    if (!meet(*comm, first + 1)) return;  // all have read
    std::memcpy(operation.out, result.data(), result.size());
    meet(*comm, first + 2);
  });
  return ncclSuccess;
}

ncclResult_t forget(ncclComm_t comm) {
  const std::lock_guard lock(comms_mutex);
  comms.erase(comm);
  return seen().release("NCCL communicators", comm) ? ncclSuccess : ncclInvalidArgument;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  ENTER();
  *version = 22809;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  ENTER();
  static std::atomic<int> next{0};
  *id = {};
  std::strcpy(id->internal, ("fake " + std::to_string(next++)).c_str());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  ENTER();
  if (config->blocking != 0) seen().violate("a blocking communicator can wait for ever");
  std::shared_ptr<Group> group;
  {
    const std::lock_guard lock(groups_mutex);
    group = groups[id.internal].lock();
    if (!group) groups[id.internal] = group = std::make_shared<Group>(ranks);
  }
  auto made = std::make_shared<ncclComm>();
  made->group = group;
  made->rank = rank;
  *comm = made.get();
  {
    const std::lock_guard lock(comms_mutex);
    comms[*comm] = made;
  }
  seen().hold("NCCL communicators", *comm);
  const std::lock_guard lock(group->mutex);
  ++group->joined;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = ncclSuccess;
  ENTER();
  *error = enter("(asynchronous error of NCCL)");
  if (*error != ncclSuccess) return ncclSuccess;
  const Shared shared = find(comm);
  if (!shared) return ncclInvalidArgument;
  const std::lock_guard lock(shared->group->mutex);
  if (shared->group->joined < shared->group->ranks) *error = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  ENTER();
  const Shared shared = find(comm);
  if (!shared) return ncclInvalidArgument;
  shared->finalized = true;
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  ENTER();
  const Shared shared = find(comm);
  if (shared && !shared->finalized) seen().violate("a communicator is destroyed unfinalized");
  return forget(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const ncclResult_t planned = enter(__func__);
  if (const Shared shared = find(comm)) {
    const std::lock_guard lock(shared->group->mutex);
    shared->aborted = true;
    shared->group->changed.notify_all();
    for (const void* data : shared->registered) seen().release("registered buffers", data);
  }
  const ncclResult_t forgotten = forget(comm);
  return planned != ncclSuccess ? planned : forgotten;
}

const char* ncclGetErrorString(ncclResult_t /*result*/) { return "a fake error of NCCL"; }
const char* ncclGetLastError(ncclComm_t /*comm*/) { return ""; }

ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  ENTER();
  return zerorun::fake::add_device_memory(data, bytes) ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* data) {
  ENTER();
  return zerorun::fake::remove_device_memory(data) ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t /*bytes*/, void** handle) {
  ENTER();
  const Shared shared = find(comm);
  if (!shared) return ncclInvalidArgument;
  shared->registered.insert(data);
  *handle = data;
  seen().hold("registered buffers", data);
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  ENTER();
  const Shared shared = find(comm);
  if (!shared || shared->registered.erase(handle) == 0) {
    seen().violate("memory is deregistered from a communicator that does not have it");
  }
  return seen().release("registered buffers", handle) ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  ENTER(stream);
  return start({.name = __func__, .in = in, .out = out, .count = count, .type = type, .detail = op},
               comm, stream);
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t out_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  ENTER(stream);
  return start(
      {.name = __func__, .in = in, .out = out, .count = out_count, .type = type, .detail = op},
      comm, stream);
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t in_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  ENTER(stream);
  return start({.name = __func__, .in = in, .out = out, .count = in_count, .type = type}, comm,
               stream);
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  ENTER(stream);
  return start(
      {.name = __func__, .in = in, .out = out, .count = count, .type = type, .detail = root}, comm,
      stream);
}

namespace zerorun {

NcclFunctions open_nccl() {
  return {.version = ncclGetVersion,
          .unique_id = ncclGetUniqueId,
          .init = ncclCommInitRankConfig,
          .finalize = ncclCommFinalize,
          .destroy = ncclCommDestroy,
          .abort = ncclCommAbort,
          .async_error = ncclCommGetAsyncError,
          .error_string = ncclGetErrorString,
          .last_error = ncclGetLastError,
          .all_reduce = ncclAllReduce,
          .reduce_scatter = ncclReduceScatter,
          .all_gather = ncclAllGather,
          .broadcast = ncclBroadcast,
          .allocate = ncclMemAlloc,
          .free = ncclMemFree,
          .register_memory = ncclCommRegister,
          .deregister_memory = ncclCommDeregister};
}

std::string describe_nccl() { return "a fake NCCL"; }

}  // namespace zerorun
