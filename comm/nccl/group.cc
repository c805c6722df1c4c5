// size: joining, calls, their watch and leaving depend on one another
#include "comm/nccl/group.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "core/check.h"
#include "device/cuda/runtime/cuda_error.h"
#include "device/cuda/runtime/current_device.h"
#include "device/drain.h"

namespace zerorun {

namespace {

constexpr std::chrono::milliseconds kSpin{2};
constexpr std::chrono::milliseconds kPoll{1};
constexpr std::chrono::milliseconds kPause{20};  // between two looks at what runs
constexpr std::chrono::milliseconds kLook{100};  // at what peers report, where one is missing
constexpr std::chrono::seconds kIdle{1};         // between two looks whether a peer asks something
constexpr int kRanksOfPause = 64;                // so that many ranks leave rank 0's store time
constexpr int kFinalizesTogether = 23100;        // NCCL 2.31
// For peers that do not leave, for which NCCL goes on waiting.
constexpr std::chrono::milliseconds kMeetingTime{5000};

}  // namespace

NcclGroup::NcclGroup(const GroupOptions& options, int device, std::shared_ptr<AskingThread> asking)
    : nccl_(open_nccl()),
      options_(options),
      device_(device),
      asking_(std::move(asking)),
      peers_(options_, device),
      inquiry_(options_, peers_.prefix(),
               {.count = options.world_size,
                .own = options.rank,
                .claim = [] { return true; },
                .own_ranks = [this] { return peers_.own_activity(last_call(), waited_s_); },
                .silent_ranks = [this](int rank) { return peers_.silent(rank); }}),
      watched_(options_.job->watch([this] { return look(); })) {
  const CurrentDevice current(device);
  try {
    join();
  } catch (const std::exception& error) {
    fail_with(error.what());
    watched_.reset();
    asking_->wait_until_idle();
    throw;
  }
}

NcclGroup::~NcclGroup() {
  if (!peers_.is_this_process()) return;
  leave();
  watched_.reset();
  asking_->wait_until_idle();
}

void NcclGroup::join() {
  const auto check_all = [this] {
    check();
    if (options_.check_parent) options_.check_parent();
  };
  begin("joining the other ranks (ncclGetVersion)");
  finish_call(nccl_.version(&version_));
  begin("joining the other ranks (ncclGetUniqueId)");
  peers_.arrive();
  ncclUniqueId id{};
  if (options_.rank == 0) {
    finish_call(nccl_.unique_id(&id));
    peers_.give_id(std::string(id.internal, sizeof(id.internal)));
  } else {
    const std::string bytes = peers_.wait_for_id(check_all);
    if (bytes.size() != sizeof(id.internal)) {
      fail<CommError>("rank {}: got an NCCL id of {} bytes from rank 0, expected {}",
                      options_.own_number(), bytes.size(), sizeof(id.internal));
    }
    std::memcpy(id.internal, bytes.data(), bytes.size());
  }
  begin("joining the other ranks (ncclCommInitRankConfig)");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // else nothing could end the wait for a rank that never joins
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    check();
    ncclComm_t comm = nullptr;
    result = nccl_.init(&comm, options_.world_size, id, options_.rank, &config);
    comm_.set(comm);
  }
  finish_call(result, check_all);
  let_calls_block(check_all);
  peers_.meet(check_all);
  const std::lock_guard lock(mutex_);
  pending_.end();
}

// A communicator that does not block gives every call to a thread of its own, and the host asks for
// its end, for several times the cost of the call. Whether it blocks cannot be changed, but one
// that is split off may do the other thing.
void NcclGroup::let_calls_block(const NcclPeers::Check& look) {
  begin("joining the other ranks (ncclCommSplit)");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  const ncclResult_t split = call([&](ncclComm_t comm) {
    return nccl_.split(comm, 0, options_.rank, comm_.successor(), &config);
  });
  // It returns success while the communicator is still in progress, and so without a successor.
  finish_call(split == ncclSuccess ? ncclInProgress : split, look);
  finish_call(call([&](ncclComm_t comm) { return nccl_.finalize(comm); }), look);
  ncclComm_t const first = comm_.succeed();
  if (first == nullptr) {
    check();
    fail<CommError>("rank {}: ncclCommSplit succeeded, but made no communicator",
                    options_.own_number());
  }
  finish_call(nccl_.destroy(first));
  finish_call(ncclInProgress, look);  // the successor, as NCCL says
}

ncclResult_t NcclGroup::call(const NcclHandle::Function& function) {
  const std::optional<ncclResult_t> result = comm_.call(function);
  if (!result) check();
  return result.value_or(ncclInvalidUsage);
}

void NcclGroup::begin(PendingCall call) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    check();
    pending_.begin(std::move(call));
    wake = std::exchange(idle_, false);
  }
  if (wake) options_.job->look_within(kPause);
}

void NcclGroup::finish_call(ncclResult_t result, const NcclPeers::Check& look) {
  if (result == ncclSuccess) return;
  const auto begun = Clock::now();
  auto looked = begun;
  while (result == ncclInProgress) {
    const auto now = Clock::now();
    if (now - begun < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPoll);
    }
    if (look && now - looked >= kLook) {
      look();
      looked = now;
    }
    const ncclResult_t asked =
        call([&](ncclComm_t comm) { return nccl_.async_error(comm, &result); });
    if (asked != ncclSuccess) result = asked;
  }
  if (result == ncclSuccess) return;
  std::string what;
  {
    const std::lock_guard lock(mutex_);
    check();  // its abort may be what ended the call
    what = pending_.last();
  }
  const char* detail = nccl_.last_error(nullptr);
  fail<CommError>("rank {}: {} failed: {}{}{}", options_.own_number(), what,
                  nccl_.error_string(result), detail == nullptr || *detail == '\0' ? "" : ": ",
                  detail == nullptr ? "" : detail);
}

void NcclGroup::check() const { options_.job->check(); }

Event NcclGroup::run(CallName name, CudaStream& stream, const Enqueue& enqueue) {
  const std::lock_guard one(calls_.mutex);
  check();
  try {
    begin({.name = std::move(name), .number = ++calls_.made, .reached = stream.record()});
    finish_call(call([&](ncclComm_t comm) { return enqueue(nccl_, comm); }));
    Event done = stream.record();
    forget_done();  // so that their events are used again
    const std::lock_guard lock(mutex_);
    check();
    pending_.enqueued(done);
    return done;
  } catch (const DeviceError& error) {  // of this rank's own GPU, which its peers know as CommError
    fail_with(error.what());
    throw;
  } catch (const Error& error) {
    fail_with(error.what());
    check();
    throw;
  }
}

// Null where NCCL refuses, or has no use for it here (NCCL_LOCAL_REGISTER=0, for one). It waits for
// nobody, and is done when it returns.
void* NcclGroup::register_memory(void* data, size_t nbytes) {
  void* handle = nullptr;
  const auto result = comm_.call(
      [&](ncclComm_t comm) { return nccl_.register_memory(comm, data, nbytes, &handle); });
  return result == ncclSuccess ? handle : nullptr;
}

Buffer NcclGroup::allocate(size_t nbytes, std::shared_ptr<NcclGroup> self) {
  const CurrentDevice current(device_);
  const std::lock_guard one(calls_.mutex);
  check();
  void* data = nullptr;
  if (nccl_.allocate(&data, nbytes) != ncclSuccess) {
    cudaGetLastError();  // the next call shall not meet it
    return {};
  }
  void* const handle = register_memory(data, nbytes);
  if (handle == nullptr) {
    nccl_.free(data);
    check();
    return {};
  }
  return {data, nbytes, [self = std::move(self), data, handle] { self->release(data, handle); }};
}

void NcclGroup::release(void* data, void* handle) noexcept {
  const CurrentDevice current(device_, std::nothrow);
  const std::lock_guard one(calls_.mutex);
  drain();
  if (!comm_.call([&](ncclComm_t comm) { return nccl_.deregister_memory(comm, handle); })) {
    comm_.wait_for_end();
  }
  nccl_.free(data);
}

// While the watcher may still abort what the calls wait for.
void NcclGroup::drain() noexcept {
  Event last;
  {
    const std::lock_guard lock(mutex_);
    last = pending_.last_done();
  }
  zerorun::drain(last);
}

std::string NcclGroup::error() const {
  const std::string found = options_.job->error();
  return found.empty() ? peers_.error(std::chrono::milliseconds(0)).value_or("") : found;
}

// This rank's other communicators get it, too, and all are ended at once: kernels of one may wait
// in the order of streams for those of another.
void NcclGroup::fail_with(std::string_view text) noexcept {
  options_.job->fail(text);
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
  }
  set_error(text);  // it is not among them yet
}

void NcclGroup::set_error(std::string_view error) noexcept {
  bool report = false;
  {
    const std::lock_guard lock(mutex_);
    report = !std::exchange(ended_, true);
  }
  if (report) peers_.report(error);
  end();
}

void NcclGroup::end() noexcept {
  const CurrentDevice current(device_, std::nothrow);
  comm_.end(nccl_.abort);
  comm_.wait_for_end();
  const std::lock_guard lock(mutex_);
  pending_.clear();  // not before: who frees memory waits for the last of them
}

void NcclGroup::check_peers(std::string_view what) {
  int64_t next = 0;
  {
    const std::lock_guard lock(calls_.mutex);
    next = calls_.made + 1;
  }
  std::string problem = error();
  if (problem.empty()) problem = peers_.missing(next, std::string(what));
  if (!problem.empty()) fail_with(problem);
  check();
}

std::string NcclGroup::last_call() const {
  const std::lock_guard lock(mutex_);
  return pending_.last();
}

void NcclGroup::forget_done() {
  while (true) {
    Event done;
    int64_t begun = 0;
    {
      const std::lock_guard lock(mutex_);
      if (!pending_.any_enqueued()) return;
      done = pending_.first().done;
      begun = pending_.first().begun;
    }
    if (!done.ready()) return;
    const std::lock_guard lock(mutex_);
    pending_.forget_first(begun);
  }
}

void NcclGroup::ask_cuda() noexcept {
  const CurrentDevice current(device_, std::nothrow);
  const RelaxedCapture relaxed;
  forget_done();
  Event reached;
  int64_t begun = 0;
  {
    const std::lock_guard lock(mutex_);
    if (pending_.empty()) return;
    reached = pending_.first().reached;
    begun = pending_.first().begun;
  }
  if (!reached.ready()) return;
  const std::lock_guard lock(mutex_);
  if (!pending_.empty() && pending_.first().begun == begun) pending_.first().is_reached = true;
}

// A call that CUDA says nothing of waits: it may be what all of CUDA waits for.
NcclGroup::CallState NcclGroup::oldest_call() {
  const bool answered = asking_->ask([this] { ask_cuda(); });
  const std::lock_guard lock(mutex_);
  if (pending_.empty()) return {};
  PendingCall& first = pending_.first();
  CallState state{.what = first.name.text(), .number = first.number};
  ncclResult_t result = ncclSuccess;
  if (pending_.any_enqueued()) {
    const auto asked =
        comm_.call([&](ncclComm_t comm) { return nccl_.async_error(comm, &result); });
    if (asked.value_or(ncclSuccess) != ncclSuccess) result = *asked;
  }
  if (result != ncclSuccess && result != ncclInProgress) {
    const char* detail = nccl_.last_error(nullptr);
    state.error = fmt::format("rank {}: {} failed: {} {}", options_.own_number(), state.what,
                              nccl_.error_string(result), detail == nullptr ? "" : detail);
  }
  if (answered && !first.is_reached) {
    first.since.reset();
    return state;
  }
  const auto now = Clock::now();
  state.waits = first.since.has_value();
  if (state.waits) {
    state.late = now - *first.since > options_.timeout;
    state.waited_s = std::chrono::duration<double>(now - *first.since).count();
  }
  if (!state.waits) first.since = now;
  return state;
}

bool NcclGroup::is_first(int64_t number) {
  asking_->ask([this] { ask_cuda(); });
  const std::lock_guard lock(mutex_);
  return !pending_.empty() && pending_.first().number == number;
}

JobState::Clock::duration NcclGroup::look() noexcept {
  try {
    look_at_calls();
  } catch (const std::exception& error) {  // of a thread's function it would end the process
    fail_with(fmt::format("rank {}: {}", options_.own_number(), error.what()));
  }
  const std::lock_guard lock(mutex_);
  idle_ = pending_.empty();
  if (idle_) return kIdle;
  return kPause * (1 + options_.world_size / kRanksOfPause);
}

void NcclGroup::look_at_calls() {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
  }
  const CallState first = oldest_call();
  waited_s_ = first.waited_s;
  std::string problem = first.error;
  if (problem.empty() && first.late) {
    inquiry_.ask(fmt::format("rank {}: {} took longer than {:.1f} s", options_.own_number(),
                             first.what, std::chrono::duration<double>(options_.timeout).count()));
  }
  try {
    if (problem.empty()) problem = inquiry_.look();
  } catch (const CommError&) {  // NOLINT(bugprone-empty-catch): without the store nobody asks
  }
  // Most calls are soon done: then nobody is asked.
  if (problem.empty() && !first.waits) return;
  options_.job->propagate();
  if (problem.empty()) warn(*first.waited_s);
  const bool ask = problem.empty() && first.number > 0;
  const std::string missing = ask ? peers_.missing(first.number, first.what) : "";
  if (problem.empty()) {
    const auto patience = missing.empty() ? std::chrono::milliseconds(0) : kLook;
    problem = peers_.error(patience).value_or("");
  }
  // It may have been the last that the peer took part in: then it is done by now.
  if (problem.empty() && !missing.empty() && is_first(first.number)) problem = missing;
  if (!problem.empty()) fail_with(problem);
}

// Ranks come to this one after the other, and the first of them speaks for all.
void NcclGroup::warn(double waited_s) {
  constexpr double kTurn = 0.3;
  constexpr int kTurns = 16;
  const double turn = waited_s - kTurn * std::min(options_.rank, kTurns);
  std::optional<std::string> notice;
  {
    const std::lock_guard lock(mutex_);
    const auto waited = std::chrono::duration<double>(std::max(turn, 0.0));
    notice = pending_.due_notice(std::chrono::duration_cast<Clock::duration>(waited));
  }
  if (!notice || !peers_.claim(*notice)) return;
  options_.log().log(LogLevel::warning, "rank {} has waited {:.0f} s in {} for other ranks",
                     options_.own_number(), waited_s, last_call());
}

void NcclGroup::leave() noexcept {
  peers_.leave(calls_.made);
  drain();  // under watch: an abort ends the wait
  if (ncclComm_t const comm = comm_.take()) {
    try {
      finalize(comm);
    } catch (const std::exception&) {  // the system has no thread left
      nccl_.abort(comm);
    }
  }
  comm_.wait_for_end();
  peers_.wait_until_all_left();
}

// ncclCommFinalize sends what is under way, so it may wait for peers, and from 2.31 on it does: for
// all ranks of the host, also for one that stays, has died or was aborted. Only ncclCommAbort would
// end that, and it frees what the call uses. So the call is made when the others leave, too, and by
// a thread that nobody has to join.
void NcclGroup::finalize(ncclComm_t comm) {
  const CurrentDevice current(device_, std::nothrow);
  const bool meets = version_ >= kFinalizesTogether;
  const auto until = Clock::now() + (meets ? kMeetingTime : options_.timeout);
  while (meets && !peers_.others_leave() && !is_alone() && Clock::now() < until) {
    std::this_thread::sleep_for(kPoll);
  }
  if (meets && Clock::now() >= until) peers_.leave_alone();
  if (is_alone()) {
    nccl_.abort(comm);
    return;
  }
  std::promise<bool> left;
  std::future<bool> over = left.get_future();
  std::thread([nccl = nccl_, device = device_, comm, left = std::move(left)]() mutable {
    const CurrentDevice own(device, std::nothrow);
    const bool is_final = nccl.finalize(comm) == ncclSuccess;
    is_final ? nccl.destroy(comm) : nccl.abort(comm);
    left.set_value(is_final);
  }).detach();
  while (over.wait_for(kLook) != std::future_status::ready) {
    if (Clock::now() > until || is_alone()) return;
  }
  if (!over.get()) peers_.leave_alone();
}

bool NcclGroup::is_alone() const noexcept {
  try {
    return !error().empty() || peers_.any_gone();
  } catch (const std::exception&) {  // of a store that is none of zerorun's
    return true;
  }
}

}  // namespace zerorun
