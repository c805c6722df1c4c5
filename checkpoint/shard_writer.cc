#include "checkpoint/shard_writer.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace zerorun {

namespace {

constexpr uint64_t kSyncNbytes = uint64_t{64} << 20;

}  // namespace

ShardWriter::ShardWriter(const std::filesystem::path& path, std::vector<HashedTensor> tensors)
    : file_(File::create(path)), tensors_(std::move(tensors)) {
  for (HashedTensor& tensor : tensors_) tensor.hashes.assign(chunks_of(tensor.nbytes), 0);
}

void ShardWriter::write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
  HashedTensor& to = tensors_.at(tensor);
  ZR_CHECK(offset == done_ && offset + bytes.size() <= to.nbytes, "bytes {} to {} of {}", offset,
           offset + bytes.size(), to.name);
  const uint64_t begin = to.begin + offset;
  file_.write(begin, bytes);
  if (begin != written_end_) written_begin_ = begin;
  written_end_ = begin + bytes.size();
  if (written_end_ - written_begin_ >= kSyncNbytes) {
    file_.start_sync(written_begin_, written_end_ - written_begin_);
    written_begin_ = written_end_;
  }
  while (!bytes.empty()) {
    const uint64_t chunk = done_ / kChunkNbytes;
    const uint64_t chunk_end = std::min((chunk + 1) * kChunkNbytes, to.nbytes);
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), chunk_end - done_));
    hash_.update(part);
    done_ += part.size();
    bytes = bytes.subspan(part.size());
    if (done_ < chunk_end) return;
    to.hashes[chunk] = hash_.value();
    hash_.reset();
  }
  if (done_ == to.nbytes) done_ = 0;
}

Manifest::ShardFile ShardWriter::finish() {
  ZR_CHECK(done_ == 0, "{} of a tensor's bytes are missing in {}", done_, file_.path().string());
  const std::string header = encode_hashed_header(tensors_);
  file_.write(0, std::as_bytes(std::span(header)));
  file_.sync();
  return {.name = file_.path().filename().string(),
          .nbytes = tensors_.empty() ? header.size() : tensors_.back().end(),
          .header_nbytes = header.size(),
          .header_hash = hash_of(std::string_view(header))};
}

}  // namespace zerorun
