#include "offload/nvme_state_store.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "core/check.h"
#include "device/cpu/cpu_stream.h"
#include "device/slot_ring.h"

namespace zerorun {

namespace {

// Each tensor of a chunk begins at a multiple of kDirectAlignment.
size_t record_nbytes(const StateLayout& chunk) {
  size_t nbytes = 0;
  for (const StateSpec& spec : chunk.tensors) {
    nbytes += align_direct(static_cast<size_t>(spec.numel(chunk.numel)) * size_of(spec.dtype));
  }
  return nbytes;
}

size_t slot_nbytes(std::span<const StateLayout> chunks) {
  size_t nbytes = 0;
  for (const StateLayout& chunk : chunks) nbytes = std::max(nbytes, record_nbytes(chunk));
  return nbytes;
}

uint64_t hash_of(const Block& block) { return XXH3_64bits(block.data, block.nbytes); }

class NvmeStateStore final : public StateStore {
 public:
  NvmeStateStore(Device& device, PinnedArena& arena, std::span<const StateLayout> chunks,
                 const NvmeOptions& options, const BlockIoFactory& make_io);

  std::vector<TensorView> acquire(int chunk, Stream& stream, Content content) override;
  void release(int chunk, Stream& stream, size_t changed) override;
  void expect(std::span<const int> chunks) override;
  std::vector<TensorView> stored(int chunk) override;
  void accept_changes() override;

 private:
  struct Chunk {
    StateLayout layout;
    uint64_t offset = 0;  // in the file
    size_t nbytes = 0;
    std::vector<std::optional<uint64_t>> hashes;  // by block; none: never written, zeros
    bool verified = false;                        // since the last write
    bool exposed = false;                         // by stored(), for writing; since the last write
    size_t slot = 0;
    Event read;  // to the slot
    Event written;
  };
  // Takes the next buffer, and reads the chunk into it as soon as it is free.
  void start_reading(Chunk& chunk);
  // Drops chunks that were read ahead: another one comes next, or their content changes.
  void forget_expected();
  std::byte* data_of(size_t slot) const { return slots_.view(slot, 0, DType::uint8).data; }
  std::vector<TensorView> views_at(const Chunk& chunk, std::byte* data) const;
  // The chunk's first `nbytes` bytes, block by block.
  std::vector<Block> blocks_of(const Chunk& chunk, std::byte* data, size_t nbytes) const;
  void read(Chunk& chunk, std::byte* data);
  void write(Chunk& chunk, std::byte* data, size_t nbytes);
  void check(const Chunk& chunk, size_t index, const Block& block) const;
  // Waits for what is under way, whose errors it throws.
  void finish();

  const size_t block_nbytes_;
  DirectFile file_;
  std::shared_ptr<void> ledger_;
  std::vector<Chunk> chunks_;
  SlotRing slots_;
  std::deque<int> expected_;  // read, or being read, to their slots
  std::unique_ptr<BlockIo> reader_;
  std::unique_ptr<BlockIo> writer_;
  // Last, so that their work is done before what it uses goes.
  std::unique_ptr<Stream> read_stream_;
  std::unique_ptr<Stream> write_stream_;
};

NvmeStateStore::NvmeStateStore(Device& device, PinnedArena& arena,
                               std::span<const StateLayout> chunks, const NvmeOptions& options,
                               const BlockIoFactory& make_io)
    : block_nbytes_(static_cast<size_t>(options.aio.block_size)),
      file_(options.folder, options.label, nvme_file_nbytes(chunks), options.purpose),
      ledger_(device.account(nvme_file_nbytes(chunks), MemoryCategory::nvme)),
      read_stream_(device.host().make_stream("zerorun-read")),
      write_stream_(device.host().make_stream("zerorun-write")) {
  uint64_t offset = 0;
  for (const StateLayout& layout : chunks) {
    Chunk& chunk = chunks_.emplace_back();
    chunk.layout = layout;
    chunk.offset = offset;
    chunk.nbytes = record_nbytes(layout);
    chunk.hashes.resize((chunk.nbytes + block_nbytes_ - 1) / block_nbytes_);
    offset += chunk.nbytes;
  }
  const auto nbytes = static_cast<int64_t>(slot_nbytes(chunks));
  std::vector<std::span<std::byte>> memory;
  for (int i = 0; i < options.buffer_count; ++i) {
    const TensorView slot = arena.take(nbytes, DType::uint8);
    slots_.add(slot);
    if (nbytes > 0) memory.push_back(slot.span<std::byte>());
  }
  const auto open = [&] {
    return make_io ? make_io(file_.open(), memory)
                   : make_block_io(file_.open(), options.aio, memory);
  };
  reader_ = open();
  writer_ = open();
}

std::vector<TensorView> NvmeStateStore::views_at(const Chunk& chunk, std::byte* data) const {
  std::vector<TensorView> views;
  for (const StateSpec& spec : chunk.layout.tensors) {
    views.push_back({data, spec.numel(chunk.layout.numel), spec.dtype});
    data += align_direct(views.back().nbytes());
  }
  return views;
}

std::vector<Block> NvmeStateStore::blocks_of(const Chunk& chunk, std::byte* data,
                                             size_t nbytes) const {
  std::vector<Block> blocks;
  for (size_t at = 0; at < nbytes; at += block_nbytes_) {
    blocks.push_back({data + at, std::min(block_nbytes_, chunk.nbytes - at), chunk.offset + at});
  }
  return blocks;
}

std::vector<TensorView> NvmeStateStore::acquire(int index, Stream& stream, Content content) {
  Chunk& chunk = chunks_.at(static_cast<size_t>(index));
  if (content == Content::overwritten) {
    forget_expected();
    chunk.slot = slots_.take(stream);
    stream.wait(chunk.written);
  } else if (!expected_.empty() && expected_.front() == index) {
    expected_.pop_front();
    stream.wait(chunk.read);
  } else {
    forget_expected();
    start_reading(chunk);
    stream.wait(chunk.read);
  }
  return views_at(chunk, data_of(chunk.slot));
}

void NvmeStateStore::start_reading(Chunk& chunk) {
  chunk.slot = slots_.take(*read_stream_);
  read_stream_->wait(chunk.written);
  std::byte* const data = data_of(chunk.slot);
  cpu_stream(*read_stream_).submit_work("read", chunk.nbytes, [this, &chunk, data] {
    read(chunk, data);
  });
  chunk.read = read_stream_->record();
}

// One buffer is left for a chunk that is acquired in between.
void NvmeStateStore::expect(std::span<const int> chunks) {
  forget_expected();
  for (const int index : chunks.first(std::min(chunks.size(), slots_.size() - 1))) {
    start_reading(chunks_.at(static_cast<size_t>(index)));
    expected_.push_back(index);
  }
}

void NvmeStateStore::forget_expected() {
  for (const int index : expected_) {
    const Chunk& chunk = chunks_[static_cast<size_t>(index)];
    slots_.release(chunk.slot, chunk.read);
  }
  expected_.clear();
}

void NvmeStateStore::release(int index, Stream& stream, size_t changed) {
  Chunk& chunk = chunks_.at(static_cast<size_t>(index));
  std::byte* const data = data_of(chunk.slot);
  size_t nbytes = 0;
  for (const TensorView& view : views_at(chunk, data)) {
    if (changed-- == 0) break;
    nbytes += align_direct(view.nbytes());
  }
  if (nbytes == 0) {
    slots_.release(chunk.slot, stream.record());
    return;
  }
  chunk.verified = chunk.exposed = false;
  write_stream_->wait(stream.record());
  write_stream_->wait(chunk.read);  // of what is overwritten
  cpu_stream(*write_stream_).submit_work("write", nbytes, [this, &chunk, data, nbytes] {
    write(chunk, data, nbytes);
  });
  chunk.written = write_stream_->record();
  slots_.release(chunk.slot, chunk.written);
}

void NvmeStateStore::read(Chunk& chunk, std::byte* data) {
  std::vector<Block> blocks;
  std::vector<size_t> indices;
  const std::vector<Block> all = blocks_of(chunk, data, chunk.nbytes);
  for (size_t i = 0; i < all.size(); ++i) {
    if (chunk.hashes[i]) {
      blocks.push_back(all[i]);
      indices.push_back(i);
    } else {
      std::memset(all[i].data, 0, all[i].nbytes);
    }
  }
  reader_->transfer(Direction::read, blocks,
                    [&](size_t i) { check(chunk, indices[i], blocks[i]); });
}

void NvmeStateStore::write(Chunk& chunk, std::byte* data, size_t nbytes) {
  const std::vector<Block> blocks = blocks_of(chunk, data, nbytes);
  writer_->transfer(Direction::write, blocks,
                    [&](size_t i) { chunk.hashes[i] = hash_of(blocks[i]); });
}

void NvmeStateStore::check(const Chunk& chunk, size_t index, const Block& block) const {
  const uint64_t hash = hash_of(block);
  if (chunk.hashes[index] == hash) return;
  fail<IoError>(
      "{}: the {} bytes at offset {} are not what was written there (hash {:016x}, expected "
      "{:016x}): the disk or its path is damaged; resume from the last checkpoint",
      file_.open().path, block.nbytes, block.offset, hash, chunk.hashes[index].value_or(0));
}

void NvmeStateStore::finish() {
  forget_expected();
  read_stream_->synchronize();
  write_stream_->synchronize();
}

std::vector<TensorView> NvmeStateStore::stored(int index) {
  finish();
  Chunk& chunk = chunks_.at(static_cast<size_t>(index));
  if (!chunk.verified) {
    slots_.synchronize(0);  // a stream of the caller's may still read it
    read(chunk, data_of(0));
    chunk.verified = true;
  }
  chunk.exposed = true;
  return views_at(chunk, file_.map() + chunk.offset);
}

void NvmeStateStore::accept_changes() {
  finish();
  for (Chunk& chunk : chunks_) {
    if (!std::exchange(chunk.exposed, false)) continue;
    const std::vector<Block> blocks = blocks_of(chunk, file_.map() + chunk.offset, chunk.nbytes);
    std::transform(blocks.begin(), blocks.end(), chunk.hashes.begin(), hash_of);
    file_.flush_map(chunk.offset, chunk.nbytes);
  }
}

}  // namespace

size_t nvme_staging_nbytes(std::span<const StateLayout> chunks, int buffer_count) {
  return slot_nbytes(chunks) * static_cast<size_t>(buffer_count);
}

uint64_t nvme_file_nbytes(std::span<const StateLayout> chunks) {
  uint64_t nbytes = 0;
  for (const StateLayout& chunk : chunks) nbytes += record_nbytes(chunk);
  return nbytes;
}

std::unique_ptr<StateStore> make_nvme_state_store(Device& device, PinnedArena& arena,
                                                  std::span<const StateLayout> chunks,
                                                  const NvmeOptions& options,
                                                  const BlockIoFactory& make_io) {
  return std::make_unique<NvmeStateStore>(device, arena, chunks, options, make_io);
}

}  // namespace zerorun
