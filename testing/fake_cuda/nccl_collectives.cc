// Groups and collectives of the fake NCCL: they run on the ranks' streams, meet there, and read
// each other's memory. See nccl_call.h.
#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "testing/fake_cuda/nccl_call.h"

using namespace zerorun::fake::of_nccl;
using zerorun::fake::Bytes;
using zerorun::fake::compute;
using zerorun::fake::Group;
using zerorun::fake::input_bytes;
using zerorun::fake::kExchange;
using zerorun::fake::Operation;
using zerorun::fake::output_bytes;
using zerorun::fake::seen;

namespace {

// What the group has collected.
thread_local std::vector<std::pair<Shared, std::function<void()>>> collected;
// Messages of a group, until there is one to and one from each rank: an exchange of slices.
struct Messages {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int sent = 0;
  int received = 0;
};
thread_local Messages messages;

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

// Otherwise its kernel meets an illegal address; NCCL_CHECK_POINTERS=1 refuses it before
// (CudaPtrCheck of src/misc/argcheck.cc).
bool addressable(const Shared& comm, const Operation& operation) {
  const size_t in = input_bytes(*comm->group, operation);
  const size_t out = output_bytes(*comm->group, operation);
  return (in == 0 || zerorun::fake::addressable(operation.in, in)) &&
         (out == 0 || zerorun::fake::addressable(operation.out, out));
}

// ncclEnqueueCheck of src/enqueue.cc.
ncclResult_t check(const Shared& comm, const Operation& operation, cudaStream_t stream) {
  const std::string& what = operation.name;
  if (!comm) return ncclInvalidArgument;
  if (comm->finalized || is_aborted(*comm)) {
    seen().violate(what + " on a communicator that has ended");
    return ncclInvalidArgument;
  }
  if (const ncclResult_t ready = ensure_ready(*comm, what); ready != ncclSuccess) return ready;
  if (!comm->blocking) seen().violate(what + " that costs NCCL a thread");
  if (comm->device != zerorun::fake::current_device) {
    seen().violate(what + " with another device than the communicator's");
  }
  // ncclLaunchKernel: CUDA refuses to launch there.
  if (!zerorun::fake::known("streams", stream) || stream->device != comm->device) {
    seen().violate(what + " on a stream of another device than the communicator's");
    return ncclUnhandledCudaError;
  }
  if (!addressable(comm, operation)) {
    seen().violate(what + " on memory that is freed or that no GPU can address");
    return ncclInvalidArgument;
  }
  expect_reachable(comm, operation);
  return ncclSuccess;
}

ncclResult_t start(Operation operation, ncclComm_t handle, cudaStream_t stream) {
  const Shared comm = alive(handle, operation.name);
  if (const ncclResult_t checked = check(comm, operation, stream); checked != ncclSuccess) {
    if (comm && !comm->blocking) comm->state = checked;
    return told(checked);
  }
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
  auto enqueue = [stream, comm, task = std::move(task)] {
    zerorun::fake::submit(stream, task);
    const std::lock_guard lock(comm->mutex);
    comm->last = stream->worker->record();
  };
  collected.emplace_back(comm, std::move(enqueue));
  return group_depth > 0 ? ncclSuccess : launch_collected();
}

}  // namespace

// src/group.cc.
ncclResult_t ncclGroupStart() {
  ENTER();
  ++group_depth;
  return ncclSuccess;
}

// src/group.cc: after an error of a call within it, nothing of the group is started.
ncclResult_t ncclGroupEnd() {
  const zerorun::fake::InFake in_fake;
  const ncclResult_t planned = enter(__func__);
  if (group_depth == 0) {
    seen().violate("a group ends that was not started");
    return ncclInvalidUsage;
  }
  if (--group_depth > 0) return planned;
  const ncclResult_t error = std::exchange(group_error, ncclSuccess);
  if (planned != ncclSuccess || error != ncclSuccess) {
    collected.clear();
    messages = {};
    return planned != ncclSuccess ? planned : error;
  }
  return launch_collected();
}

// Collectives, src/collectives.cc and src/enqueue.cc: enqueued when the call returns, or the group
// ends. The first one of a communicator that blocks waits there for peers to connect to.
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
    return told(ncclInvalidArgument);
  }
  return alive(comm, __func__) ? ncclSuccess : told(ncclInvalidArgument);
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                      cudaStream_t stream) {
  ENTER(stream);
  const Shared comm = alive(handle, __func__);
  if (!comm) return told(ncclInvalidArgument);
  if (peer == 0) messages.out = static_cast<std::byte*>(out);
  ++messages.received;
  if (messages.received != peer + 1 || messages.sent != peer + 1 ||
      out != messages.out + static_cast<size_t>(peer) * count) {
    seen().violate("a message that is no part of an exchange of slices");
    return told(ncclInvalidArgument);
  }
  if (messages.received < comm->group->ranks) return ncclSuccess;
  const Messages all = std::exchange(messages, {});
  return start({.name = kExchange, .in = all.in, .out = all.out, .count = count, .type = type},
               handle, stream);
}
