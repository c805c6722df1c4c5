#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/format/shard_file.h"
#include "checkpoint/saving/background_save.h"
#include "checkpoint/saving/save.h"
#include "checkpoint/saving/snapshot_queue.h"
#include "comm/agreement.h"
#include "core/check.h"
#include "core/log.h"
#include "device/cpu/cpu_stream.h"
#include "os/thread_priority.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

namespace {

// Bytes of this rank's part that lie on its device, at most, as pieces of a queue.
uint64_t resident_nbytes(EngineStates& engine) {
  uint64_t nbytes = 0;
  const auto specs = engine.parameters();
  engine.visit_states(StateAccess::shape, [&](const StateInterval& interval) {
    const bool trainable = specs[static_cast<size_t>(interval.parameter)].trainable;
    if (!interval.owned || (trainable ? interval.on_host : interval.param_on_host)) return;
    const auto add = [&](const TensorView& view) {
      nbytes += SnapshotQueue::memory_for(view.nbytes());
    };
    if (!trainable) return add(interval.param);
    add(interval.master);
    for (const TensorView& state : interval.states) add(state);
  });
  return nbytes;
}

// All pieces of this rank's part side by side: in the order of the file without gaps, if that is
// the order in which they come.
uint64_t whole_nbytes(EngineStates& engine) {
  const ShardPlan plan(engine);
  const std::vector<HashedTensor>& tensors = plan.tensors();
  if (tensors.empty()) return 0;
  if (plan.is_read_in_order()) return tensors.back().end() - tensors.front().begin;
  uint64_t nbytes = 0;
  for (const HashedTensor& tensor : tensors) nbytes += SnapshotQueue::memory_for(tensor.nbytes);
  return nbytes;
}

BackgroundSave::Job make_job(const SaveOptions& options, const Agreement& agreement,
                             std::chrono::milliseconds peer_timeout) {
  BackgroundSave::Job job{.rank = agreement.rank(),
                          .world_size = agreement.world_size(),
                          .options = options,
                          .buffer_bytes = {},
                          .peer_timeout = peer_timeout};
  job.options.buffers.clear();
  if (job.rank != 0) return job;
  size_t total = 0;
  for (const NamedTensor& buffer : options.buffers) total += buffer.bytes.size();
  job.buffer_bytes.resize(total);
  size_t done = 0;
  for (const NamedTensor& buffer : options.buffers) {
    const auto copy = std::span(job.buffer_bytes).subspan(done, buffer.bytes.size());
    std::copy(buffer.bytes.begin(), buffer.bytes.end(), copy.begin());
    job.options.buffers.push_back({buffer.name, buffer.dtype, buffer.shape, copy});
    done += buffer.bytes.size();
  }
  return job;
}

}  // namespace

uint64_t snapshot_nbytes(EngineStates& engine, uint64_t asked) {
  const uint64_t whole = whole_nbytes(engine);
  const uint64_t wanted = asked > 0 ? asked : std::max(resident_nbytes(engine), kMinSnapshotNbytes);
  const uint64_t enough = std::min(whole, wanted);
  constexpr uint64_t kUnit = SnapshotQueue::kAlignment;
  return std::max((enough + kUnit - 1) / kUnit * kUnit, kUnit);
}

struct AsyncSaver::Impl {
  Impl(EngineStates& states, Communicator& communicator, const AsyncOptions& given)
      : engine(states), comm(communicator), options(given) {
    const uint64_t nbytes = snapshot_nbytes(states, given.buffer_nbytes);
    memory = states.device().allocate_pinned(nbytes);
    // The kernel gives pages when they are first written, which the first save would wait for.
    std::memset(memory.data(), 0, nbytes);
    thread->submit([] { lower_thread_priority(); });
  }

  void finish();
  void finish_alone();
  // All ranks have written, and rank 0 has committed.
  void retire();

  EngineStates& engine;
  Communicator& comm;
  const AsyncOptions options;
  Buffer memory;
  const std::unique_ptr<CpuStream> thread = make_worker_stream("zerorun-save");
  std::unique_ptr<BackgroundSave> save;
};

// The error of the lowest rank that could not write; else of rank 0, which commits.
void AsyncSaver::Impl::finish() {
  if (!save) return;
  const std::unique_ptr<BackgroundSave> ending = std::move(save);
  Agreement agreement(comm, engine.device().inline_stream());
  try {
    agreement.run("save: write", [&] { ending->wait_written(); });
    agreement.run("save: commit", [&] { ending->wait_committed(); });
    if (ending->needs_all()) ending->commit_together(engine, comm);
  } catch (...) {
    ending->discard();  // what a rank wrote after rank 0 had failed
    throw;
  }
}

void AsyncSaver::Impl::retire() {
  const std::unique_ptr<BackgroundSave> ended = std::move(save);
  try {
    if (ended && ended->needs_all()) ended->commit_together(engine, comm);
  } catch (...) {
    ended->discard();
    throw;
  }
}

void AsyncSaver::Impl::finish_alone() {
  const std::unique_ptr<BackgroundSave> ending = std::move(save);
  ending->wait_written();
  ending->wait_committed();
}

AsyncSaver::AsyncSaver(EngineStates& engine, Communicator& comm, const AsyncOptions& options)
    : impl_(std::make_unique<Impl>(engine, comm, options)) {}

AsyncSaver::~AsyncSaver() {
  const State last = state();
  const bool is_complete = last == State::saved && !impl_->save->needs_all();
  if (last == State::idle || is_complete) return;
  const Logger log(impl_->comm.rank(), impl_->comm.world_size());
  if (last != State::failed) {
    log.log(LogLevel::error, "{} is not saved: the program ended before it was complete",
            impl_->save->place());
    return;
  }
  try {
    impl_->finish_alone();
  } catch (const std::exception& error) {
    log.log(LogLevel::error, "{}", error.what());
  }
}

void AsyncSaver::save(const SaveOptions& options) {
  impl_->finish();
  Agreement agreement(impl_->comm, impl_->engine.device().inline_stream());
  PreparedSave prepared = prepare_save(impl_->engine, impl_->comm, options);
  impl_->save = std::make_unique<BackgroundSave>(
      std::move(prepared), make_job(options, agreement, impl_->options.peer_timeout),
      BackgroundSave::Resources{{impl_->memory.data(), impl_->memory.nbytes()}, *impl_->thread});
  try {
    agreement.run("save: snapshot", [&] { impl_->save->take_snapshot(impl_->engine.device()); });
  } catch (...) {
    impl_->save.reset();
    throw;
  }
}

AsyncSaver::State AsyncSaver::state() const {
  if (!impl_->save) return State::idle;
  if (!impl_->save->is_done()) return State::saving;
  return impl_->save->has_failed() ? State::failed : State::saved;
}

bool AsyncSaver::poll() {
  if (!impl_->save) return true;
  Agreement agreement(impl_->comm, impl_->engine.device().inline_stream());
  // Failed before saving before saved: what some rank is, all act on.
  const State own = state();
  const int64_t order = own == State::failed ? 2 : own == State::saving ? 1 : 0;
  const int64_t worst = agreement.reduce(order, ReduceOp::max);
  if (worst == 1) return false;
  worst == 0 ? impl_->retire() : impl_->finish();
  return true;
}

void AsyncSaver::wait() { impl_->finish(); }

void AsyncSaver::wait_alone() {
  if (!impl_->save) return;
  impl_->save->needs_all() ? impl_->finish() : impl_->finish_alone();
}

}  // namespace zerorun
