// A fake NCCL for ranks that are threads: its communicators, and its memory. In the place of
// comm/nccl/library.cc, which opens the real library. See nccl_call.h.

#include "comm/nccl/library.h"
#include "device/drain.h"
#include "testing/fake_cuda/nccl_call.h"

using namespace zerorun::fake::of_nccl;
using zerorun::fake::Group;
using zerorun::fake::seen;

namespace {

constexpr size_t kPage = 4096;
std::mutex groups_mutex;
std::map<std::string, std::weak_ptr<Group>> groups;

// ncclAsyncLaunch and ncclGroupEndInternal of src/group.cc: a communicator that does not block is
// in progress when the call returns, and a thread of NCCL's performs it.
ncclResult_t perform(const Shared& comm, std::function<ncclResult_t()> call) {
  if (comm->blocking) return call();
  comm->state = ncclInProgress;
  const std::lock_guard lock(comm->mutex);
  comm->job = std::thread([held = comm.get(), call = std::move(call)] { held->state = call(); });
  return ncclInProgress;
}

void set_aborted(ncclComm& comm) {
  const std::lock_guard lock(comm.group->mutex);
  comm.aborted = true;
  comm.group->changed.notify_all();
}

void join(ncclComm& comm) {
  const std::lock_guard lock(comm.group->mutex);
  ++comm.group->joined;
  comm.group->devices.push_back(comm.device);
  comm.group->changed.notify_all();
}

// Waits for all ranks to join; an error when the communicator was aborted. Two ranks of a host with
// one PCI address are refused (initTransportsRank of src/init.cc, "Duplicate GPU detected"; from
// 2.30 on unless NCCL_MULTI_RANK_GPU_ENABLE=1).
ncclResult_t wait_for_peers(ncclComm& comm) {
  Group& group = *comm.group;
  std::unique_lock lock(group.mutex);
  group.changed.wait(lock, [&] { return comm.aborted || group.joined >= group.ranks; });
  if (comm.aborted) return ncclInternalError;
  const std::set<int> devices(group.devices.begin(), group.devices.end());
  return devices.size() == group.devices.size() ? ncclSuccess : ncclInvalidUsage;
}

// commDestroySync of src/init.cc waits for NCCL's streams, which follow its kernels.
void wait_for_kernels(ncclComm& comm) {
  zerorun::Event last;
  {
    const std::lock_guard lock(comm.mutex);
    last = comm.last;
  }
  zerorun::drain(last);
}

// commDestroySync of src/init.cc of 2.31: a barrier of the ranks of the host, which looks at the
// own abort flag only (bootstrapIntraNodeBarrier of src/bootstrap.cc). A rank that has died, or has
// been aborted, does not come.
ncclResult_t meet_to_finalize(ncclComm& comm) {
  constexpr int kMeets = 23100;
  if (seen().nccl_version() < kMeets) return ncclSuccess;
  Group& group = *comm.group;
  std::unique_lock lock(group.mutex);
  ++group.finalizing;
  group.changed.notify_all();
  group.changed.wait(lock, [&] { return comm.aborted || group.finalizing >= group.ranks; });
  return comm.aborted ? ncclInternalError : ncclSuccess;
}

ncclResult_t forget(ncclComm_t comm) {
  const std::lock_guard lock(comms_mutex);
  comms.erase(comm);
  return seen().release("NCCL communicators", comm) ? ncclSuccess : ncclInvalidArgument;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  ENTER();
  *version = seen().nccl_version();
  return ncclSuccess;
}

// src/init.cc, bootstrapCreateRoot: by the caller's thread.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  ENTER();
  static std::atomic<int> next{0};
  *id = {};
  std::strcpy(id->internal, ("fake " + std::to_string(next++)).c_str());
  return ncclSuccess;
}

// src/init.cc: the handle is there when it returns, with the state, which is in progress or done.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *comm = nullptr;
  ENTER();
  expect_no_group(__func__);
  if (config->blocking != 0) seen().violate("nothing can end the wait for a rank that never joins");
  const auto made = std::make_shared<ncclComm>();
  {
    const std::lock_guard lock(groups_mutex);
    made->group = groups[id.internal].lock();
    if (!made->group) groups[id.internal] = made->group = std::make_shared<Group>(ranks);
  }
  made->rank = rank;
  made->device = zerorun::fake::current_device;
  *comm = made.get();
  add(made);
  join(*made);
  perform(made, [held = made.get()] { return wait_for_peers(*held); });
  return state_of(*made);
}

// src/init.cc, from 2.27 to 2.31: returns ncclSuccess while the parent is still in progress. A
// thread of NCCL's stores the handle when all ranks have split, also when that fails
// (ncclCommInitRankFunc), and only then changes the parent's state (groupLaunch of src/group.cc).
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int /*key*/, ncclComm_t* made,
                           ncclConfig_t* config) {
  ENTER();
  expect_no_group(__func__);
  const Shared parent = alive(comm, __func__);
  if (!parent || color != 0) return ncclInvalidArgument;
  if (const ncclResult_t ready = ensure_ready(*parent, __func__); ready != ncclSuccess) {
    return ready;
  }
  *made = nullptr;
  const auto child = std::make_shared<ncclComm>();
  {
    const std::lock_guard lock(parent->group->mutex);
    if (!parent->group->split) parent->group->split = std::make_shared<Group>(parent->group->ranks);
    child->group = parent->group->split;
  }
  child->rank = parent->rank;
  child->device = parent->device;
  child->blocking = config->blocking != 0;
  {
    const std::lock_guard lock(parent->mutex);
    parent->child = child;
  }
  join(*child);
  const ncclResult_t done = perform(parent, [held = parent.get(), child, made] {
    constexpr std::chrono::milliseconds kTakesTime{1};
    std::this_thread::sleep_for(kTakesTime);
    ncclResult_t result = wait_for_peers(*child);
    if (result == ncclSuccess) result = enter("(NCCL's thread splits)");
    add(child);
    std::atomic_ref(*made).store(child.get(), std::memory_order_release);
    const std::lock_guard lock(held->mutex);
    held->child.reset();
    return result;
  });
  return parent->blocking ? done : ncclSuccess;
}

// src/init.cc: what the last call of a communicator that does not block has come to.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = ncclSuccess;
  ENTER();
  *error = enter("(asynchronous error of NCCL)");
  if (*error != ncclSuccess) return ncclSuccess;
  const Shared shared = alive(comm, __func__);
  if (!shared) return ncclInvalidArgument;
  *error = state_of(*shared);
  return ncclSuccess;
}

// src/init.cc: refused while the communicator is in progress, which then has that error. Waits for
// the communicator's kernels, and as in 2.31 for the other ranks of the host to come here, in
// NCCL's thread if it does not block. Errors that a test plans come after that.
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const zerorun::fake::InFake in_fake;
  const ncclResult_t planned = enter(__func__);
  expect_no_group(__func__);
  const Shared shared = alive(comm, __func__);
  if (!shared) return ncclInvalidArgument;
  ncclResult_t refused = ensure_ready(*shared, __func__);
  if (refused == ncclSuccess && shared->finalized.exchange(true)) {
    seen().violate("a communicator is finalized twice");
    refused = ncclInvalidArgument;
  }
  if (refused != ncclSuccess) {
    if (!shared->blocking) shared->state = refused;
    return refused;
  }
  shared->finalizing = true;
  const ncclResult_t begun = perform(shared, [held = shared.get(), planned] {
    wait_for_kernels(*held);
    const ncclResult_t result = meet_to_finalize(*held);
    held->finalizing = false;
    return planned != ncclSuccess ? planned : result;
  });
  return shared->blocking ? begun : state_of(*shared);
}

// src/init.cc: refused while the communicator is in progress (and then the caller's group never
// ends). Without ncclCommFinalize it would wait for the communicator's kernels.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const zerorun::fake::InFake in_fake;
  const ncclResult_t planned = enter(__func__);
  expect_no_group(__func__);
  const Shared shared = alive(comm, __func__);
  if (!shared) return ncclInvalidArgument;
  if (!shared->finalized) seen().violate("a communicator is destroyed unfinalized");
  if (const ncclResult_t ready = ensure_ready(*shared, __func__); ready != ncclSuccess) {
    return ready;
  }
  const ncclResult_t forgotten = forget(comm);
  return planned != ncclSuccess ? planned : forgotten;
}

// src/init.cc: also ends a communicator that is being split off, joins NCCL's thread, which stores
// that one's handle all the same, and waits for the kernels to end. It frees what a call of another
// thread may still use.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const zerorun::fake::InFake in_fake;
  const ncclResult_t planned = enter(__func__);
  expect_no_group(__func__);
  const Shared shared = alive(comm, __func__);
  if (!shared) return ncclInvalidArgument;
  Shared child;
  {
    const std::lock_guard lock(shared->mutex);
    child = shared->child;
  }
  if (shared->blocking && shared->finalizing) {
    seen().violate("a communicator is aborted and freed while another thread finalizes it");
  }
  if (child) set_aborted(*child);
  set_aborted(*shared);
  join_thread(*shared);
  if (!shared->finalized) wait_for_kernels(*shared);
  {
    const std::lock_guard lock(shared->mutex);
    for (const auto& [data, bytes] : shared->registered) seen().release("registered buffers", data);
    shared->registered.clear();
  }
  const ncclResult_t forgotten = forget(comm);
  return planned != ncclSuccess ? planned : forgotten;
}

// src/init.cc, for the errors that tests plan.
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "internal error - please report this issue to the NCCL developers";
  }
}
// src/init.cc: the last warning of the process, whatever the communicator.
const char* ncclGetLastError(ncclComm_t /*comm*/) { return ""; }

// src/allocator.cc: cuMemCreate and its kin, or cudaMalloc, either of which may wait for the whole
// device. (It rounds up to the granularity of the GPU, which the fake does not count.)
ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  ENTER();
  zerorun::fake::synchronize_device();
  return zerorun::fake::add_device_memory(data, bytes, kPage) ? ncclSuccess
                                                              : ncclUnhandledCudaError;
}

// src/allocator.cc: cuMemUnmap, which waits for no work that uses the memory, or cudaFree, which
// may wait for all work of the device.
ncclResult_t ncclMemFree(void* data) {
  const zerorun::fake::InFake in_fake;
  const ncclResult_t planned = enter(__func__);
  if (data == nullptr) return planned;
  // After an error or an abort it may be at other work.
  const bool failed = seen().failures() > 0 || seen().counts()["ncclCommAbort"] > 0;
  if (!failed && !zerorun::fake::device_is_idle()) {
    seen().violate("registered memory is freed while the device is at work, which may use it");
  }
  zerorun::fake::synchronize_device();
  if (seen().holds("registered buffers", data)) {
    seen().violate("memory is freed that is registered with a communicator");
  }
  return zerorun::fake::remove_device_memory(data) ? planned : ncclUnhandledCudaError;
}

// src/register/register.cc: by the caller's thread, whatever the communicator. Null if
// NCCL_LOCAL_REGISTER=0. It rounds to pages; the driver refuses (from 2.30 on already here) memory
// that it does not know.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t bytes, void** handle) {
  ENTER();
  const Shared shared = alive(comm, __func__);
  if (!shared) return ncclInvalidArgument;
  *handle = nullptr;
  if (!seen().local_register()) return ncclSuccess;
  if (reinterpret_cast<uintptr_t>(data) % kPage != 0) {
    seen().violate("memory is registered that does not begin a page");
  }
  if (!zerorun::fake::addressable(data, bytes)) {
    seen().violate("memory is registered that is freed or that no GPU can address");
    return ncclUnhandledCudaError;
  }
  const std::lock_guard lock(shared->mutex);
  if (!shared->registered.emplace(static_cast<const std::byte*>(data), bytes).second) {
    seen().violate("memory is registered twice, which the fake does not count");
  }
  *handle = data;
  seen().hold("registered buffers", data);
  return ncclSuccess;
}

// src/register/register.cc: it unmaps, which may wait for the whole device.
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const zerorun::fake::InFake in_fake;
  const ncclResult_t planned = enter(__func__);
  const Shared shared = alive(comm, __func__);
  if (!shared) return ncclInvalidArgument;
  zerorun::fake::synchronize_device();
  {
    const std::lock_guard lock(shared->mutex);
    if (shared->registered.erase(static_cast<const std::byte*>(handle)) == 0) {
      seen().violate("memory is deregistered from a communicator that does not have it");
      return ncclInvalidUsage;
    }
  }
  return seen().release("registered buffers", handle) ? planned : ncclInvalidUsage;
}

namespace zerorun {

NcclFunctions open_nccl() { return {ZR_NCCL_FUNCTIONS(ZR_LINKED_FUNCTION)}; }

std::string describe_nccl() { return "a fake NCCL"; }

}  // namespace zerorun
