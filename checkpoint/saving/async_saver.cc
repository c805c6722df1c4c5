#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoint/files/file.h"
#include "checkpoint/format/shard_file.h"
#include "checkpoint/saving/save.h"
#include "comm/agreement.h"
#include "core/check.h"
#include "core/log.h"
#include "device/cpu/cpu_stream.h"
#include "device/drain.h"
#include "os/thread_priority.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

namespace fs = std::filesystem;

namespace {

constexpr size_t kPieceNbytes = size_t{8} << 20;
constexpr std::chrono::milliseconds kLook{10};  // between two looks for the other ranks' files

// The name of a rank's file until it is complete, and if it never will be.
fs::path unfinished(fs::path path) { return path += ".part"; }
fs::path given_up(fs::path path) { return path += ".failed"; }

// Reads from a file what the manifest says of it.
Manifest::ShardFile describe_file(const fs::path& path) {
  const File file = File::open_to_read(path);
  uint64_t length = 0;
  std::array<std::byte, sizeof length> prefix{};
  if (file.read(0, prefix) == prefix.size()) std::memcpy(&length, prefix.data(), sizeof length);
  const uint64_t nbytes = file.size();
  if (length > kMaxHeaderNbytes || length + prefix.size() > nbytes) {
    fail<IoError>("{} changed while it was saved", path.string());
  }
  std::string header(length + prefix.size(), '\0');
  header.resize(file.read(0, std::as_writable_bytes(std::span(header))));
  decode_hashed_header(header, nbytes, path.string());
  return {.name = path.filename().string(),
          .nbytes = nbytes,
          .header_nbytes = header.size(),
          .header_hash = hash_of(std::string_view(header))};
}

}  // namespace

// One asynchronous save. A thread of each rank writes the rank's file while training continues. A
// file gets its final name when it is complete; rank 0's thread waits for all names and then
// commits. So the threads do not need the communicator, which training uses. If ranks do not see
// each other's files (use_node_local_storage), the training thread commits.
class BackgroundSave {
 public:
  // `memory`, for the snapshot, and `thread` are shared by all saves, one after the other. They and
  // the communicator must outlive this object. `peer_timeout`: how long rank 0 waits for files of
  // other ranks. Collective.
  BackgroundSave(EngineStates& engine, Communicator& comm, const SaveOptions& options,
                 std::chrono::milliseconds peer_timeout, std::span<std::byte> memory,
                 CpuStream& thread)
      : comm_(comm),
        options_(options),
        peer_timeout_(peer_timeout),
        save_(prepare_save(engine, comm, options)),
        queue_(memory),
        thread_(thread) {
    keep_buffers();
    thread_.submit([this] { run(); });
  }
  // Makes the thread stop at the next piece, and waits for it. Removes the files of a save that was
  // not committed.
  ~BackgroundSave() {
    queue_.close();
    {
      const std::scoped_lock lock(mutex_);
      is_cancelled_ = true;
      cancelled_.notify_all();
    }
    thread_.synchronize();
  }
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Copies the engine's states. Returns when they may change again. The copies of a GPU follow each
  // other without the host's help: the thread that writes waits for each.
  void take_snapshot(Device& device) {
    Stream& stream = device.inline_stream();
    try {
      save_.plan.read([&](size_t tensor, TensorView data, bool on_host) {
        const auto element = static_cast<int64_t>(size_of(data.dtype));
        const uint64_t place = save_.plan.tensors()[tensor].begin;
        for (int64_t begin = 0; begin < data.numel;) {
          const auto left = static_cast<size_t>((data.numel - begin) * element);
          const auto offset = static_cast<uint64_t>(begin * element);
          const auto room = queue_.reserve(std::min(left, kPieceNbytes), place + offset);
          if (room.empty()) return;  // the thread has failed, and says why
          const int64_t numel = static_cast<int64_t>(room.size()) / element;
          device.download(stream, data.slice(begin, numel), room.data());
          queue_.push({tensor, offset, room, stream.record()});
          begin += numel;
        }
        if (on_host) stream.synchronize();  // it is there during the call only
      });
    } catch (...) {
      drain(stream);  // the next save uses the memory
      throw;
    }
    stream.synchronize();
    queue_.finish();
  }

  AsyncSaver::State state() const { return state_; }  // saved: committed
  std::string place() const { return save_.folder.place().string(); }
  // Waits until this rank's file is written. Throws the error of writing it.
  void wait_written() { written_.get_future().get(); }
  // Waits for the commit by rank 0's thread. Throws its error.
  void wait_committed() { committed_.get_future().get(); }
  // True if the ranks have to call commit_together() after all have written, because hosts do not
  // see each other's files.
  bool needs_all() const { return options_.node_local; }
  // Commits the save. Collective; called on the training thread.
  void commit_together(EngineStates& engine) { commit_save(engine, comm_, save_, own_, options_); }
  // Removes the files of a save that failed.
  void discard() {
    if (save_.disks.leads(comm_.rank())) save_.folder.discard();
  }

 private:
  // Copies what the program may change before the thread has written it.
  void keep_buffers() {
    const std::vector<NamedTensor> given = std::exchange(options_.buffers, {});
    if (comm_.rank() != 0) return;
    size_t total = 0;
    for (const NamedTensor& buffer : given) total += buffer.bytes.size();
    buffer_bytes_.resize(total);
    auto left = std::span(buffer_bytes_);
    for (const NamedTensor& buffer : given) {
      std::copy(buffer.bytes.begin(), buffer.bytes.end(), left.begin());
      options_.buffers.push_back(
          {buffer.name, buffer.dtype, buffer.shape, left.first(buffer.bytes.size())});
      left = left.subspan(buffer.bytes.size());
    }
  }

  void run() noexcept {
    std::promise<void>* step = &written_;
    try {
      write_file();
      written_.set_value();
      step = &committed_;
      if (comm_.rank() == 0 && !needs_all()) commit();
      committed_.set_value();
      state_ = AsyncSaver::State::saved;
    } catch (...) {
      queue_.close();
      std::error_code ignored;
      const fs::path path = save_.folder.shard(comm_.rank());
      if (step == &written_) fs::rename(unfinished(path), given_up(path), ignored);
      discard();
      step->set_exception(std::current_exception());
      state_ = AsyncSaver::State::failed;
    }
  }

  void write_file() {
    const fs::path path = save_.folder.shard(comm_.rank());
    try {
      save_.folder.check_seen();
      ShardWriter writer(unfinished(path), save_.plan.tensors());
      for (auto pieces = queue_.take(); !pieces.empty(); pieces = queue_.take()) {
        for (const SnapshotQueue::Piece& piece : pieces) {
          piece.copied.synchronize();
          writer.write_in_place(piece.tensor, piece.offset, piece.bytes);
        }
        writer.flush();
        queue_.release();
      }
      {
        const std::scoped_lock lock(mutex_);
        if (is_cancelled_) fail<IoError>("{} was not finished", save_.folder.place().string());
      }
      own_ = writer.finish();
      if (comm_.rank() == 0) {
        save_.manifest.buffers = write_buffers(save_.folder.buffers(), options_.buffers);
      }
      own_.name = path.filename().string();
      rename_path(unfinished(path), path);
    } catch (const IoError& error) {
      fail<IoError>("{}; {}", error.what(), save_.folder.disk_use());
    }
  }

  void commit() {
    for (int rank = 0; rank < comm_.world_size(); ++rank) {
      save_.manifest.shards.push_back(wait_for_peer(rank));
    }
    save_.folder.commit(save_.manifest, options_.update_latest);
    save_.folder.remove_superfluous(options_.keep);
  }

  Manifest::ShardFile wait_for_peer(int rank) {
    const fs::path path = save_.folder.shard(rank);
    const auto deadline = std::chrono::steady_clock::now() + peer_timeout_;
    std::unique_lock lock(mutex_);
    while (!path_exists(path)) {
      if (path_exists(given_up(path))) {
        fail<IoError>("{} is not saved: rank {} could not write its part, and says why",
                      save_.folder.place().string(), rank);
      }
      if (std::chrono::steady_clock::now() > deadline) {
        fail<IoError>("{} is not saved: rank {} has not written {} within {:.0f} s",
                      save_.folder.place().string(), rank, path.filename().string(),
                      std::chrono::duration<double>(peer_timeout_).count());
      }
      if (cancelled_.wait_for(lock, kLook, [&] { return is_cancelled_; })) {
        fail<IoError>("{} was not finished", save_.folder.place().string());
      }
    }
    return describe_file(path);
  }

  Communicator& comm_;
  SaveOptions options_;  // its buffers are rank 0's and are in `buffer_bytes_`
  std::vector<std::byte> buffer_bytes_;
  const std::chrono::milliseconds peer_timeout_;
  PreparedSave save_;
  Manifest::ShardFile own_;
  SnapshotQueue queue_;
  std::promise<void> written_;
  std::promise<void> committed_;
  std::atomic<AsyncSaver::State> state_ = AsyncSaver::State::saving;
  std::mutex mutex_;
  std::condition_variable cancelled_;
  bool is_cancelled_ = false;
  CpuStream& thread_;
};

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

  EngineStates& engine;
  Communicator& comm;
  const AsyncOptions options;
  const pid_t process = getpid();
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
    if (ending->needs_all()) ending->commit_together(engine);
  } catch (...) {
    ending->discard();  // what a rank wrote after rank 0 had failed
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
  if (getpid() != impl_->process) {  // a forked child has no thread, and the files are its parent's
    impl_.release();                 // NOLINT(bugprone-unused-return-value)
    return;
  }
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
  impl_->save = std::make_unique<BackgroundSave>(
      impl_->engine, impl_->comm, options, impl_->options.peer_timeout,
      std::span(impl_->memory.data(), impl_->memory.nbytes()), *impl_->thread);
  try {
    agreement.run("save: snapshot", [&] { impl_->save->take_snapshot(impl_->engine.device()); });
  } catch (...) {
    impl_->save.reset();
    throw;
  }
}

AsyncSaver::State AsyncSaver::state() const {
  return impl_->save ? impl_->save->state() : State::idle;
}

bool AsyncSaver::poll() {
  if (!impl_->save) return true;
  Agreement agreement(impl_->comm, impl_->engine.device().inline_stream());
  // Failed before saving before saved: what some rank is, all act on.
  const State own = state();
  const int64_t order = own == State::failed ? 2 : own == State::saving ? 1 : 0;
  if (agreement.reduce(order, ReduceOp::max) == 1) return false;
  impl_->finish();
  return true;
}

void AsyncSaver::wait() { impl_->finish(); }

void AsyncSaver::wait_alone() {
  if (!impl_->save) return;
  impl_->save->needs_all() ? impl_->finish() : impl_->finish_alone();
}

}  // namespace zerorun
