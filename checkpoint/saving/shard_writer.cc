#include "checkpoint/saving/shard_writer.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace zerorun {

namespace {

constexpr uint64_t kPartNbytes = uint64_t{256} << 10;  // stays in the cache between hash and copy

uint64_t length_of(const std::vector<HashedTensor>& tensors) {
  return tensors.empty() ? 0 : tensors.back().end();
}

}  // namespace

ShardWriter::ShardWriter(const std::filesystem::path& path, std::vector<HashedTensor> tensors)
    : tensors_(std::move(tensors)), file_(path, length_of(tensors_)) {
  for (HashedTensor& tensor : tensors_) tensor.hashes.assign(chunks_of(tensor.nbytes), 0);
}

HashedTensor& ShardWriter::next(size_t tensor, uint64_t offset, size_t nbytes) {
  HashedTensor& to = tensors_.at(tensor);
  ZR_CHECK(offset == done_ && offset + nbytes <= to.nbytes, "bytes {} to {} of {}", offset,
           offset + nbytes, to.name);
  return to;
}

void ShardWriter::hash(HashedTensor& tensor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const uint64_t chunk = done_ / kChunkNbytes;
    const uint64_t chunk_end = std::min((chunk + 1) * kChunkNbytes, tensor.nbytes);
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), chunk_end - done_));
    hash_.update(part);
    done_ += part.size();
    bytes = bytes.subspan(part.size());
    if (done_ < chunk_end) continue;
    tensor.hashes[chunk] = hash_.value();
    hash_.reset();
  }
  if (done_ == tensor.nbytes) done_ = 0;
}

void ShardWriter::write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
  HashedTensor& to = next(tensor, offset, bytes.size());
  for (uint64_t at = to.begin + offset; !bytes.empty();) {
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), kPartNbytes));
    hash(to, part);
    file_.write(at, part);
    at += part.size();
    bytes = bytes.subspan(part.size());
  }
}

// The disk has a block before it is hashed.
void ShardWriter::write_in_place(size_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
  HashedTensor& to = next(tensor, offset, bytes.size());
  for (uint64_t at = to.begin + offset; !bytes.empty();) {
    const uint64_t block = BlockWriter::kBlockNbytes - at % BlockWriter::kBlockNbytes;
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), block));
    file_.write_in_place(at, part);
    hash(to, part);
    at += part.size();
    bytes = bytes.subspan(part.size());
  }
}

Manifest::ShardFile ShardWriter::finish() {
  ZR_CHECK(done_ == 0, "{} of a tensor's bytes are missing in {}", done_, file_.path().string());
  const std::string header = encode_hashed_header(tensors_);
  file_.write(0, std::as_bytes(std::span(header)));
  file_.finish();
  return {.name = file_.path().filename().string(),
          .nbytes = std::max<uint64_t>(header.size(), length_of(tensors_)),
          .header_nbytes = header.size(),
          .header_hash = hash_of(std::string_view(header))};
}

}  // namespace zerorun
