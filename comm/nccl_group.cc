#include "comm/nccl_group.h"

#include <cstring>
#include <optional>
#include <utility>

#include "core/check.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/current_device.h"
#include "device/cuda/relaxed_capture.h"

namespace zerorun {

namespace {

constexpr std::chrono::milliseconds kSpin{2};
constexpr std::chrono::milliseconds kPoll{1};
constexpr std::chrono::milliseconds kLook{100};  // between two looks at what runs

// The value, if the store has it or gets it in time.
std::optional<std::string> find(Store& store, const std::string& key,
                                std::chrono::milliseconds timeout) {
  try {
    return store.get(key, timeout);
  } catch (const CommError&) {
    return std::nullopt;
  }
}

}  // namespace

NcclGroup::NcclGroup(const CommunicatorOptions& options, int device)
    : nccl_(open_nccl()), options_(options), device_(device) {
  const CurrentDevice current(device);
  try {
    join();
    watcher_ = std::thread([this] { watch(); });
  } catch (...) {
    if (comm_ != nullptr) nccl_.abort(comm_);
    throw;
  }
}

NcclGroup::~NcclGroup() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  watcher_.join();
  end();
}

void NcclGroup::join() {
  const std::string key = options_.name + "/nccl/id";
  ncclUniqueId id{};
  if (options_.rank == 0) {
    settle(nccl_.unique_id(&id), "ncclGetUniqueId");
    options_.store->set(key, std::string(id.internal, sizeof(id.internal)));
  } else {
    const std::string bytes = options_.store->get(key, options_.timeout);
    if (bytes.size() != sizeof(id.internal)) {
      fail<CommError>("rank {}: got an NCCL id of {} bytes from rank 0, expected {}", options_.rank,
                      bytes.size(), sizeof(id.internal));
    }
    std::memcpy(id.internal, bytes.data(), bytes.size());
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // no call waits for peers, so none outlives the deadline
  settle(nccl_.init(&comm_, options_.world_size, id, options_.rank, &config),
         "joining the other ranks (ncclCommInitRankConfig)");
}

// Waits until NCCL is done with a call that goes on in the background.
void NcclGroup::settle(ncclResult_t result, std::string_view what) {
  const auto begin = Clock::now();
  while (result == ncclInProgress) {
    const auto waited = Clock::now() - begin;
    if (waited > options_.timeout) throw CommError(explain_delay(what));
    // NCCL gives every call to a thread of its own, which mostly needs less than a pause.
    if (waited < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPoll);
    }
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) throw CommError(error_);
    const ncclResult_t asked = nccl_.async_error(comm_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result == ncclSuccess) return;
  const char* detail = nccl_.last_error(nullptr);
  fail<CommError>("rank {}: {} failed: {}{}{}", options_.rank, what, nccl_.error_string(result),
                  detail == nullptr || *detail == '\0' ? "" : ": ",
                  detail == nullptr ? "" : detail);
}

void NcclGroup::check() const {
  const std::lock_guard lock(mutex_);
  if (!error_.empty()) throw CommError(error_);
}

void NcclGroup::run(const std::string& what, CudaStream& stream, const Enqueue& enqueue) {
  const CurrentDevice current(device_);
  const std::lock_guard one(calls_);
  check();
  try {
    enqueue_and_settle(what, enqueue);
    Event done = stream.record();
    const std::lock_guard lock(mutex_);
    forget_done();
    pending_.push_back({what, std::move(done), Clock::now()});
  } catch (const Error& error) {
    fail_with(error.what());
    throw CommError(error.what());
  }
  changed_.notify_all();
}

// Meanwhile the watcher looks for errors of peers, and may abort.
void NcclGroup::enqueue_and_settle(const std::string& what, const Enqueue& enqueue) {
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) throw CommError(error_);
    result = enqueue(nccl_, comm_);
    enqueuing_ = true;
  }
  changed_.notify_all();
  const auto end = [this] {
    const std::lock_guard lock(mutex_);
    enqueuing_ = false;
  };
  try {
    settle(result, what);
  } catch (...) {
    end();
    throw;
  }
  end();
}

// The front's deadline begins when it is the front.
void NcclGroup::forget_done() {
  while (!pending_.empty() && pending_.front().done.ready()) {
    pending_.pop_front();
    if (!pending_.empty()) pending_.front().since = Clock::now();
  }
}

Buffer NcclGroup::allocate(size_t nbytes, std::shared_ptr<NcclGroup> self) {
  const CurrentDevice current(device_);
  const std::lock_guard one(calls_);
  check();
  void* data = nullptr;
  if (nccl_.allocate(&data, nbytes) != ncclSuccess) {
    cudaGetLastError();  // the next call shall not meet it
    return {};
  }
  void* handle = nullptr;
  ncclResult_t registered = ncclInvalidUsage;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) registered = nccl_.register_memory(comm_, data, nbytes, &handle);
  }
  if (registered != ncclSuccess) {
    nccl_.free(data);
    check();
    return {};
  }
  return {data, nbytes, [self = std::move(self), data, handle] {
            const CurrentDevice of_group(self->device_, std::nothrow);
            const std::lock_guard last(self->calls_);
            {
              const std::lock_guard group_lock(self->mutex_);
              if (handle != nullptr && self->comm_ != nullptr) {
                self->nccl_.deregister_memory(self->comm_, handle);
              }
            }
            self->nccl_.free(data);
          }};
}

void NcclGroup::abort(std::string_view reason) noexcept {
  try {
    fail_with(fmt::format("rank {} aborted the job: {}", options_.rank, reason));
  } catch (const std::bad_alloc&) {
    fail_with("aborted");
  }
}

// The first error counts. Peers learn of it through the store; NCCL's kernels end.
void NcclGroup::fail_with(std::string text) noexcept {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!error_.empty()) return;
    error_ = std::move(text);
    pending_.clear();
    comm = std::exchange(comm_, nullptr);
  }
  try {
    if (options_.store) options_.store->set(options_.name + "/nccl/error", error_);
  } catch (const Error&) {  // the store is gone: peers have the deadline
  }
  if (comm != nullptr) nccl_.abort(comm);
}

// Where the ranks are that did not come: every rank that meets its deadline says what it waits for.
std::string NcclGroup::ask_peers() {
  constexpr std::chrono::milliseconds kAnswer{500};
  std::string answers;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (rank == options_.rank) continue;
    const auto waits =
        find(*options_.store, fmt::format("{}/nccl/waits/{}", options_.name, rank), kAnswer);
    answers += fmt::format("; rank {} {}", rank, waits ? "waits in " + *waits : "did not answer");
  }
  return answers;
}

std::string NcclGroup::explain_delay(std::string_view what) {
  options_.store->set(fmt::format("{}/nccl/waits/{}", options_.name, options_.rank),
                      std::string(what));
  return fmt::format("rank {}: {} took longer than {:.1f} s{}", options_.rank, what,
                     std::chrono::duration<double>(options_.timeout).count(), ask_peers());
}

std::string NcclGroup::examine() {
  std::string late;
  {
    const std::lock_guard lock(mutex_);
    forget_done();
    if (pending_.empty() || comm_ == nullptr) return {};
    const Pending& first = pending_.front();
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = nccl_.async_error(comm_, &result);
    if (asked != ncclSuccess) result = asked;
    if (result != ncclSuccess && result != ncclInProgress) {
      const char* detail = nccl_.last_error(nullptr);
      return fmt::format("rank {}: {} failed: {} {}", options_.rank, first.what,
                         nccl_.error_string(result), detail == nullptr ? "" : detail);
    }
    if (Clock::now() - first.since > options_.timeout) late = first.what;
  }
  return late.empty() ? std::string() : explain_delay(late);
}

void NcclGroup::watch() {
  cudaSetDevice(device_);
  const RelaxedCapture relaxed;
  const std::string key = options_.name + "/nccl/error";
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || enqueuing_ || !pending_.empty(); });
      if (closing_) return;
    }
    try {
      std::string problem = examine();
      if (problem.empty()) problem = find(*options_.store, key, kLook).value_or("");
      if (!problem.empty()) fail_with(std::move(problem));
    } catch (const Error& error) {
      fail_with(fmt::format("rank {}: {}", options_.rank, error.what()));
    }
  }
}

void NcclGroup::end() noexcept {
  if (comm_ == nullptr) return;
  try {
    const CurrentDevice current(device_);
    settle(nccl_.finalize(comm_), "ncclCommFinalize");
    nccl_.destroy(comm_);
  } catch (...) {  // nobody is left to tell
    nccl_.abort(comm_);
  }
}

}  // namespace zerorun
