// Groups and collectives of the fake NCCL: they run on the ranks' streams, meet there, and read
// each other's memory. See nccl_call.h.

#include "testing/fake_cuda/nccl_call.h"

using namespace zerorun::fake::of_nccl;
using zerorun::fake::Bytes;
using zerorun::fake::Group;
using zerorun::fake::Operation;
using zerorun::fake::seen;

namespace {

// What the group has collected; false when the communicator was aborted.
thread_local std::vector<std::function<bool()>> collected;
// The messages of a group, which start together.
struct Messages {
  Shared comm;
  cudaStream_t stream = nullptr;
  struct Message {
    int peer = 0;
    std::byte* data = nullptr;
    size_t nbytes = 0;
  };
  std::vector<Message> sent;
  std::vector<Message> received;
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
  for (const std::function<bool()>& launch : std::exchange(collected, {})) {
    if (!launch()) return ncclRemoteError;
  }
  return ncclSuccess;
}

// Where a collective's kernel has got to. What is dropped, as the device has failed, is done, too.
struct Kernel {
  enum Stage : int { kQueued, kStarted, kDone };
  std::atomic<int> stage = kQueued;

  void reach(Stage now) {
    stage = now;
    stage.notify_all();
  }
  void wait(Stage least) {
    for (int now = stage; now < least; now = stage) stage.wait(now);
  }
};

// The kernel of each device that NCCL launched last.
std::mutex launched_mutex;
struct Launched {
  std::shared_ptr<Kernel> kernel;
  const ncclComm* comm = nullptr;
};
std::map<int, Launched> launched;

// getImplicitOrder and ncclLaunchPrepare of src/enqueue.cc, 2.26 to 2.29: with
// NCCL_LAUNCH_ORDER_IMPLICIT=1 a kernel starts after those that were launched before on its device,
// whatever the communicator; for drivers before 12.3 after their end. Without, and before 2.26,
// kernels of two communicators may wait for each other ("Using multiple NCCL communicators
// concurrently" of the user guide).
void run_in_order(const Launched& before, const ncclComm* comm, const std::shared_ptr<Kernel>& mine,
                  const std::function<void()>& task) {
  constexpr int kHasImplicitOrder = 22600;
  constexpr int kHasLaunchEvents = 12030;
  if (before.kernel && before.comm != comm) {
    if (seen().nccl_version() < kHasImplicitOrder) {
      if (before.kernel->stage != Kernel::kDone) {
        seen().violate("kernels of two communicators in no order");
      }
    } else if (seen().implicit_order()) {
      before.kernel->wait(seen().driver() < kHasLaunchEvents ? Kernel::kDone : Kernel::kStarted);
    }
  }
  mine->reach(Kernel::kStarted);
  task();
  mine->reach(Kernel::kDone);
}

void enqueue(const Shared& comm, cudaStream_t stream, const std::function<void()>& task) {
  const auto mine = std::make_shared<Kernel>();
  const std::shared_ptr<void> end(nullptr, [mine](void*) { mine->reach(Kernel::kDone); });
  Launched before;
  {
    const std::lock_guard lock(launched_mutex);
    before = std::exchange(launched[comm->device], {mine, comm.get()});
  }
  zerorun::fake::submit(
      stream, [before, comm, mine, end, task] { run_in_order(before, comm.get(), mine, task); });
  const std::lock_guard lock(comm->mutex);
  comm->last = stream->worker->record();
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
  const size_t in = zerorun::fake::input_bytes(*comm->group, operation);
  const size_t out = zerorun::fake::output_bytes(*comm->group, operation);
  return (in == 0 || zerorun::fake::addressable(operation.in, in)) &&
         (out == 0 || zerorun::fake::addressable(operation.out, out));
}

// ncclEnqueueCheck of src/enqueue.cc.
ncclResult_t check(const Shared& comm, const Operation& operation, cudaStream_t stream) {
  const std::string& what = operation.name;
  if (!comm) return ncclInvalidArgument;
  const auto aborted = [&] {
    const std::lock_guard lock(comm->group->mutex);
    return comm->aborted;
  };
  if (comm->finalized || aborted()) {
    seen().violate(what + " on a communicator that has ended");
    return ncclInvalidArgument;
  }
  if (const ncclResult_t ready = ensure_ready(*comm, what); ready != ncclSuccess) return ready;
  if (!comm->blocking) seen().violate(what + " that costs NCCL a thread");
  if (comm->device != zerorun::fake::current_device) {
    seen().violate(what + " with another device than the communicator's");
  }
  // ncclLaunchKernel: CUDA refuses to launch there.
  if (!zerorun::fake::is_stream(stream) || stream->device != comm->device) {
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
  stream = zerorun::fake::stream_of(stream);
  const Shared comm = alive(handle, operation.name);
  if (const ncclResult_t checked = check(comm, operation, stream); checked != ncclSuccess) {
    if (comm && !comm->blocking) comm->state = checked;
    return told(checked);
  }
  // A collective in place has this rank's part where its rank says.
  const auto place_of = [&](const void* data, const char* its_part) {
    const int64_t place = comm->place_of(data);
    return operation.name == its_part ? std::min<int64_t>(place, 0) : place;
  };
  operation.in_place = place_of(operation.in, "ncclAllGather");
  operation.out_place = place_of(operation.out, "ncclReduceScatter");
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
      mine.input.assign(in, in + zerorun::fake::input_bytes(group, operation));
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
    const Bytes result = differs ? Bytes() : zerorun::fake::compute(group, operation, comm->rank);
    if (!meet(*comm, first + 1)) return;  // all have read
    std::memcpy(operation.out, result.data(), result.size());
    meet(*comm, first + 2);
  };
  collected.emplace_back([stream, comm, task = std::move(task)] {
    if (!connect(*comm)) return false;
    enqueue(comm, stream, task);
    return true;
  });
  return group_depth > 0 ? ncclSuccess : launch_collected();
}

// The two ranks of a pair connect with their first message (src/transport.cc,
// ncclTransportP2pSetup); a rank without messages waits for nobody.
bool connect_to_peers(const Messages& all) {
  Group& group = *all.comm->group;
  std::unique_lock lock(group.mutex);
  for (const auto* list : {&all.sent, &all.received}) {
    for (const auto& message : *list) group.linked.insert({all.comm->rank, message.peer});
  }
  group.changed.notify_all();
  const auto is_linked = [&](const Messages::Message& message) {
    return group.linked.count({message.peer, all.comm->rank}) > 0;
  };
  group.changed.wait(lock, [&] {
    return all.comm->aborted || (std::all_of(all.sent.begin(), all.sent.end(), is_linked) &&
                                 std::all_of(all.received.begin(), all.received.end(), is_linked));
  });
  return !all.comm->aborted;
}

// A large message is sent once its receiver is there, so all are: the real one keeps small ones.
void exchange(const Messages& all) {
  ncclComm& comm = *all.comm;
  Group& group = *comm.group;
  std::unique_lock lock(group.mutex);
  for (const auto& [peer, data, nbytes] : all.sent) {
    group.messages[{comm.rank, peer}].emplace_back(data, data + nbytes);
  }
  group.changed.notify_all();
  for (const auto& [peer, data, nbytes] : all.received) {
    auto& box = group.messages[{peer, comm.rank}];
    group.changed.wait(lock, [&] { return comm.aborted || !box.empty(); });
    if (comm.aborted) return;
    if (box.front().size() == nbytes) {
      std::memcpy(data, box.front().data(), nbytes);
    } else {
      seen().violate("a message of another length than its receiver expects");
    }
    box.pop_front();
    group.changed.notify_all();
  }
  for (const auto& message : all.sent) {
    const auto& box = group.messages[{comm.rank, message.peer}];
    group.changed.wait(lock, [&] { return comm.aborted || box.empty(); });
  }
}

ncclResult_t add_message(const char* what, std::vector<Messages::Message> Messages::*list,
                         Messages::Message message, ncclComm_t handle, cudaStream_t stream) {
  stream = zerorun::fake::stream_of(stream);
  const Shared comm = alive(handle, what);
  const Operation operation{
      .name = what, .in = message.data, .out = message.data, .count = message.nbytes};
  if (const ncclResult_t checked = check(comm, operation, stream); checked != ncclSuccess) {
    return told(checked);
  }
  if (message.peer < 0 || message.peer >= comm->group->ranks) return told(ncclInvalidArgument);
  if (group_depth == 0) seen().violate("a message outside of a group, which waits for its peer");
  if (messages.comm && (messages.comm != comm || messages.stream != stream)) {
    seen().violate("messages of two communicators or streams in a group");
  }
  messages.comm = comm;
  messages.stream = stream;
  (messages.*list).push_back(message);
  return ncclSuccess;
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
  Messages all = std::exchange(messages, {});
  if (planned != ncclSuccess || error != ncclSuccess) {
    collected.clear();
    return planned != ncclSuccess ? planned : error;
  }
  if (all.comm) {
    collected.emplace_back([all = std::move(all)] {
      if (!connect_to_peers(all)) return false;
      enqueue(all.comm, all.stream, [all] { exchange(all); });
      return true;
    });
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

// src/collectives.cc: the messages of a group start together, in any order; between two ranks the
// n-th one that is sent is the n-th one that is received.
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  ENTER(stream);
  auto* const data = static_cast<std::byte*>(const_cast<void*>(in));
  return add_message(__func__, &Messages::sent,
                     {peer, data, count * zerorun::size_of(zerorun::fake::dtype_of(type))}, comm,
                     stream);
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  ENTER(stream);
  auto* const data = static_cast<std::byte*>(out);
  return add_message(__func__, &Messages::received,
                     {peer, data, count * zerorun::size_of(zerorun::fake::dtype_of(type))}, comm,
                     stream);
}
