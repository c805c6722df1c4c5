#include "checkpoint/saving/background_save.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "checkpoint/files/file.h"
#include "checkpoint/files/hash.h"
#include "checkpoint/files/layout.h"
#include "checkpoint/format/shard_file.h"
#include "checkpoint/saving/save.h"
#include "checkpoint/saving/shard_writer.h"
#include "core/check.h"
#include "device/drain.h"

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

BackgroundSave::BackgroundSave(PreparedSave save, Job job, Resources resources)
    : save_(std::move(save)),
      job_(std::move(job)),
      queue_(resources.memory),
      thread_(resources.thread) {
  thread_.submit([this] { run(); });
}

BackgroundSave::~BackgroundSave() {
  cancel();
  thread_.synchronize();
}

void BackgroundSave::cancel() {
  queue_.close();
  const std::scoped_lock lock(mutex_);
  is_cancelled_ = true;
  cancelled_.notify_all();
}

// The copies of a GPU follow each other without the host's help: the thread that writes waits for
// each.
void BackgroundSave::take_snapshot(Device& device) {
  Stream& stream = device.inline_stream();
  try {
    copy_states(device, stream);
  } catch (...) {
    drain(stream);  // the next save uses the memory
    throw;
  }
  stream.synchronize();
  queue_.finish();
}

void BackgroundSave::copy_states(Device& device, Stream& stream) {
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
}

void BackgroundSave::run() noexcept {
  std::promise<void>* step = &written_;
  try {
    write_file();
    written_.set_value();
    step = &committed_;
    if (job_.rank == 0 && !needs_all()) commit();
    committed_.set_value();
  } catch (...) {
    failed_ = true;
    queue_.close();
    std::error_code ignored;
    const fs::path path = save_.folder.shard(job_.rank);
    if (step == &written_) fs::rename(unfinished(path), given_up(path), ignored);
    discard();
    step->set_exception(std::current_exception());
  }
  done_ = true;
}

void BackgroundSave::commit_together(EngineStates& engine, Communicator& comm) {
  commit_save(engine, comm, save_, own_, job_.options);
}

void BackgroundSave::discard() {
  if (save_.disks.leads(job_.rank)) save_.folder.discard();
}

void BackgroundSave::write_file() {
  const fs::path path = save_.folder.shard(job_.rank);
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
    if (job_.rank == 0) {
      save_.manifest.buffers = write_buffers(save_.folder.buffers(), job_.options.buffers);
    }
    own_.name = path.filename().string();
    rename_path(unfinished(path), path);
  } catch (const IoError& error) {
    fail<IoError>("{}; {}", error.what(), save_.folder.disk_use());
  }
}

void BackgroundSave::commit() {
  for (int rank = 0; rank < job_.world_size; ++rank) {
    save_.manifest.shards.push_back(wait_for_peer(rank));
  }
  save_.folder.commit(save_.manifest, job_.options.update_latest);
  save_.folder.remove_superfluous(job_.options.keep);
}

Manifest::ShardFile BackgroundSave::wait_for_peer(int rank) {
  const fs::path path = save_.folder.shard(rank);
  const auto deadline = std::chrono::steady_clock::now() + job_.peer_timeout;
  std::unique_lock lock(mutex_);
  while (!path_exists(path)) {
    if (path_exists(given_up(path))) {
      fail<IoError>("{} is not saved: rank {} could not write its part, and says why",
                    save_.folder.place().string(), rank);
    }
    if (std::chrono::steady_clock::now() > deadline) {
      fail<IoError>("{} is not saved: rank {} has not written {} within {:.0f} s",
                    save_.folder.place().string(), rank, path.filename().string(),
                    std::chrono::duration<double>(job_.peer_timeout).count());
    }
    if (cancelled_.wait_for(lock, kLook, [&] { return is_cancelled_; })) {
      fail<IoError>("{} was not finished", save_.folder.place().string());
    }
  }
  return describe_file(path);
}

}  // namespace zerorun
