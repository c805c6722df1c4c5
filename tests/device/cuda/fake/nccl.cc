// A fake NCCL for ranks that are threads: collectives run on the ranks' streams, meet there, and
// read each other's memory. In the place of comm/nccl/library.cc, which opens the real library.
// size: the functions of one library
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/nccl/library.h"
#include "tests/device/cuda/fake/nccl_ranks.h"
#include "tests/device/cuda/fake/runtime_call.h"

namespace {

using zerorun::fake::Bytes;
using zerorun::fake::compute;
using zerorun::fake::FakeCuda;
using zerorun::fake::Group;
using zerorun::fake::input_bytes;
using zerorun::fake::kExchange;
using zerorun::fake::Operation;

std::mutex groups_mutex;
std::map<std::string, std::weak_ptr<Group>> groups;

FakeCuda& seen() { return FakeCuda::instance(); }

ncclResult_t enter(const char* name, const void* stream = nullptr) {
  return static_cast<ncclResult_t>(seen().enter(name, stream));
}

#undef ENTER
#define ENTER(...)                                                               \
  do {                                                                           \
    if (const ncclResult_t planned = enter(__func__ __VA_OPT__(, ) __VA_ARGS__); \
        planned != ncclSuccess) {                                                \
      return planned;                                                            \
    }                                                                            \
  } while (false)

// Collectives hold the communicator's state: it may be aborted while they wait.
using Shared = std::shared_ptr<ncclComm>;
std::mutex comms_mutex;
std::map<ncclComm_t, Shared> comms;

// A group of this thread: how deep it is in groups, and what it has collected.
thread_local int group_depth = 0;
thread_local std::vector<std::pair<Shared, std::function<void()>>> collected;
// Messages of a group, until there is one to and one from each rank: an exchange of slices.
struct Messages {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int sent = 0;
  int received = 0;
};
thread_local Messages messages;

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

// A first collective waits for peers to connect to. False when the communicator was aborted.
bool connect(ncclComm& comm) {
  Group& group = *comm.group;
  std::unique_lock lock(group.mutex);
  if (!std::exchange(comm.connected, true)) ++group.connecting;
  group.changed.notify_all();
  group.changed.wait(lock, [&] { return comm.aborted || group.connecting >= group.ranks; });
  return !comm.aborted;
}

ncclResult_t launch_collected() {
  for (auto& [comm, enqueue] : std::exchange(collected, {})) {
    if (!connect(*comm)) return ncclRemoteError;
    enqueue();
  }
  return ncclSuccess;
}

// Between GPUs of one process NCCL's kernels use the ranks' memory where it lies.
void expect_reachable(const Shared& comm, const Operation& operation) {
  if (operation.count == 0) return;
  const std::lock_guard lock(comm->group->mutex);
  for (const int device : comm->group->devices) {
    if (zerorun::fake::reachable(operation.in, device) &&
        zerorun::fake::reachable(operation.out, device)) {
      continue;
    }
    seen().violate(operation.name + " on memory that the GPU of a peer cannot reach");
  }
}

// A communicator may not be used before it is done with the last call.
void expect_finished(const Shared& comm, const char* what) {
  const std::lock_guard lock(comm->group->mutex);
  if (!comm->unfinished.empty()) {
    seen().violate(std::string(what) + " on a communicator that is still in progress");
  }
}

ncclResult_t start(Operation operation, ncclComm_t handle, cudaStream_t stream) {
  const Shared comm = find(handle);
  if (!comm || comm->aborted || comm->finalized) {
    seen().violate(operation.name + " on a communicator that has ended");
    return ncclInvalidArgument;
  }
  expect_finished(comm, operation.name.c_str());
  if (!comm->blocking) seen().violate(operation.name + " that costs NCCL a thread");
  if (comm->device != zerorun::fake::current_device) {
    seen().violate(operation.name + " with another device than the communicator's");
  }
  expect_reachable(comm, operation);
  // A collective in place has this rank's part where its rank says.
  operation.in_place = comm->place_of(operation.in);
  if (operation.name == "ncclAllGather")
    operation.in_place = std::min<int64_t>(operation.in_place, 0);
  operation.out_place = comm->place_of(operation.out);
  if (operation.name == "ncclReduceScatter") {
    operation.out_place = std::min<int64_t>(operation.out_place, 0);
  }
  const int64_t first = ++comm->meetings;
  comm->meetings += 2;
  auto task = [comm, operation = std::move(operation), first] {
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
    bool differs = false;
    for (const Operation& other : group.operations) {
      if (!operation.matches(other)) {
        seen().violate("ranks differ: " + operation.name + " and " + other.name);
        differs = true;
      } else if (!operation.lies_like(other)) {
        seen().violate(operation.name +
                       " on registered memory of some ranks only, or elsewhere in it");
      }
    }
    const Bytes result = differs ? Bytes() : compute(group, operation, comm->rank);
    if (!meet(*comm, first + 1)) return;  // all have read
    std::memcpy(operation.out, result.data(), result.size());
    meet(*comm, first + 2);
  };
  auto enqueue = [stream, device = comm->device, task = std::move(task)] {
    // NCCL's own thread does this.
    const int before = std::exchange(zerorun::fake::current_device, device);
    zerorun::fake::submit(stream, task);
    zerorun::fake::current_device = before;
  };
  collected.emplace_back(comm, std::move(enqueue));
  return group_depth > 0 ? ncclSuccess : launch_collected();
}

// False as long as ranks are missing.
bool give_child(ncclComm& parent) {
  {
    const std::lock_guard lock(parent.child->group->mutex);
    if (parent.child->group->joined < parent.child->group->ranks) return false;
  }
  *parent.child_place = parent.child.get();
  seen().hold("NCCL communicators", parent.child.get());
  const std::lock_guard lock(comms_mutex);
  comms[parent.child.get()] = std::move(parent.child);
  return true;
}

ncclResult_t forget(ncclComm_t comm) {
  if (const Shared ended = find(comm)) {
    const std::lock_guard lock(ended->group->mutex);
    ended->unfinished.clear();  // which hold it
  }
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
  if (config->blocking != 0) seen().violate("nothing can end the wait for a rank that never joins");
  std::shared_ptr<Group> group;
  {
    const std::lock_guard lock(groups_mutex);
    group = groups[id.internal].lock();
    if (!group) groups[id.internal] = group = std::make_shared<Group>(ranks);
  }
  auto made = std::make_shared<ncclComm>();
  made->group = group;
  made->rank = rank;
  made->device = zerorun::fake::current_device;
  *comm = made.get();
  {
    const std::lock_guard lock(comms_mutex);
    comms[*comm] = made;
  }
  seen().hold("NCCL communicators", *comm);
  const std::lock_guard lock(group->mutex);
  ++group->joined;
  group->devices.push_back(made->device);
  return ncclInProgress;
}

// The handle is there once all ranks have split.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int /*key*/, ncclComm_t* made,
                           ncclConfig_t* config) {
  ENTER();
  const Shared parent = find(comm);
  if (!parent || color != 0) return ncclInvalidArgument;
  expect_finished(parent, __func__);
  *made = nullptr;
  auto child = std::make_shared<ncclComm>();
  {
    const std::lock_guard lock(parent->group->mutex);
    if (!parent->group->split) parent->group->split = std::make_shared<Group>(parent->group->ranks);
    child->group = parent->group->split;
  }
  child->rank = parent->rank;
  child->device = parent->device;
  child->blocking = config->blocking != 0;
  parent->child = child;
  parent->child_place = made;
  const std::lock_guard lock(child->group->mutex);
  ++child->group->joined;
  child->group->devices.push_back(child->device);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = ncclSuccess;
  ENTER();
  *error = enter("(asynchronous error of NCCL)");
  if (*error != ncclSuccess) return ncclSuccess;
  const Shared shared = find(comm);
  if (!shared) {
    seen().violate("a communicator is asked for errors after its end");
    return ncclInvalidArgument;
  }
  std::vector<std::function<void()>> unfinished;
  {
    const std::lock_guard lock(shared->group->mutex);
    if (shared->group->joined < shared->group->ranks) *error = ncclInProgress;
    unfinished.swap(shared->unfinished);
  }
  if (shared->child && !give_child(*shared)) *error = ncclInProgress;
  if (!unfinished.empty()) *error = ncclInProgress;  // for once more
  for (const auto& enqueue : unfinished) enqueue();
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ENTER();
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const ncclResult_t planned = enter(__func__);
  if (group_depth == 0) {
    seen().violate("a group ends that was not started");
    return ncclInvalidUsage;
  }
  if (--group_depth > 0) return planned;
  if (planned != ncclSuccess) {
    collected.clear();
    return planned;
  }
  return collected.empty() ? ncclSuccess : launch_collected();
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  ENTER();
  const Shared shared = find(comm);
  if (!shared) return ncclInvalidArgument;
  expect_finished(shared, __func__);
  shared->finalized = true;
  return shared->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const ncclResult_t planned = enter(__func__);
  const Shared shared = find(comm);
  if (shared && !shared->finalized) seen().violate("a communicator is destroyed unfinalized");
  const ncclResult_t forgotten = forget(comm);
  return planned != ncclSuccess ? planned : forgotten;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const ncclResult_t planned = enter(__func__);
  if (const Shared shared = find(comm)) {
    const std::lock_guard lock(shared->group->mutex);
    shared->aborted = true;
    shared->group->changed.notify_all();
    for (const auto& [data, bytes] : shared->registered) {
      seen().release("registered buffers", data);
    }
  }
  const ncclResult_t forgotten = forget(comm);
  return planned != ncclSuccess ? planned : forgotten;
}

const char* ncclGetErrorString(ncclResult_t /*result*/) { return "a fake error of NCCL"; }
const char* ncclGetLastError(ncclComm_t /*comm*/) { return ""; }

// As with the runtime's memory, the real ones may wait for the whole device.
ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  ENTER();
  zerorun::fake::synchronize_device();
  return zerorun::fake::add_device_memory(data, bytes) ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* data) {
  const ncclResult_t planned = enter(__func__);
  zerorun::fake::synchronize_device();
  return zerorun::fake::remove_device_memory(data) ? planned : ncclInvalidArgument;
}

// A test may have it go on in the background, as any call of a non-blocking communicator may.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t bytes, void** handle) {
  const ncclResult_t planned = enter(__func__);
  if (planned != ncclSuccess && planned != ncclInProgress) return planned;
  const Shared shared = find(comm);
  if (!shared) return ncclInvalidArgument;
  expect_finished(shared, __func__);
  auto finish = [held = shared.get(), data, bytes, handle] {
    held->registered[static_cast<const std::byte*>(data)] = bytes;
    *handle = data;
    seen().hold("registered buffers", data);
  };
  if (planned == ncclSuccess) {
    finish();
  } else {
    const std::lock_guard lock(shared->group->mutex);
    shared->unfinished.push_back(std::move(finish));
  }
  return planned;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const ncclResult_t planned = enter(__func__);
  zerorun::fake::synchronize_device();
  const Shared shared = find(comm);
  if (!shared || shared->registered.erase(static_cast<const std::byte*>(handle)) == 0) {
    seen().violate("memory is deregistered from a communicator that does not have it");
  }
  return seen().release("registered buffers", handle) ? planned : ncclInvalidArgument;
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

// As the two are used: within a group, to and from each rank in order, of neighbouring slices.
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  ENTER(stream);
  const auto* const from = static_cast<const std::byte*>(in);
  if (peer == 0) messages.in = from;
  if (group_depth == 0 || type != ncclUint8 || peer != messages.sent++ ||
      from != messages.in + static_cast<size_t>(peer) * count) {
    seen().violate("a message that is no part of an exchange of slices");
    return ncclInvalidArgument;
  }
  return find(comm) ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                      cudaStream_t stream) {
  ENTER(stream);
  const Shared comm = find(handle);
  if (!comm) return ncclInvalidArgument;
  if (peer == 0) messages.out = static_cast<std::byte*>(out);
  ++messages.received;
  if (messages.received != peer + 1 || messages.sent != peer + 1 ||
      out != messages.out + static_cast<size_t>(peer) * count) {
    seen().violate("a message that is no part of an exchange of slices");
    return ncclInvalidArgument;
  }
  if (messages.received < comm->group->ranks) return ncclSuccess;
  const Messages all = std::exchange(messages, {});
  return start({.name = kExchange, .in = all.in, .out = all.out, .count = count, .type = type},
               handle, stream);
}

namespace zerorun {

NcclFunctions open_nccl() {
  return {.version = ncclGetVersion,
          .unique_id = ncclGetUniqueId,
          .init = ncclCommInitRankConfig,
          .split = ncclCommSplit,
          .finalize = ncclCommFinalize,
          .destroy = ncclCommDestroy,
          .abort = ncclCommAbort,
          .async_error = ncclCommGetAsyncError,
          .error_string = ncclGetErrorString,
          .last_error = ncclGetLastError,
          .group_start = ncclGroupStart,
          .group_end = ncclGroupEnd,
          .all_reduce = ncclAllReduce,
          .reduce_scatter = ncclReduceScatter,
          .all_gather = ncclAllGather,
          .broadcast = ncclBroadcast,
          .send = ncclSend,
          .receive = ncclRecv,
          .allocate = ncclMemAlloc,
          .free = ncclMemFree,
          .register_memory = ncclCommRegister,
          .deregister_memory = ncclCommDeregister};
}

std::string describe_nccl() { return "a fake NCCL"; }

}  // namespace zerorun
