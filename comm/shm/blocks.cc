#include "comm/shm/blocks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/check.h"

namespace zerorun::shm {

Buffer Blocks::add(Block block) {
  std::byte* data = block.part(rank_);
  const size_t nbytes = block.nbytes;
  {
    const std::lock_guard lock(mutex_);
    by_address_.emplace(data, std::move(block));
  }
  return {data, nbytes, [blocks = shared_from_this(), data] { blocks->remove(data); }};
}

void Blocks::remove(const std::byte* data) {
  decltype(by_address_)::node_type block;  // unmapped after the lock is released
  const std::lock_guard lock(mutex_);
  block = by_address_.extract(data);
}

Location Blocks::locate(const std::byte* data, size_t nbytes) const {
  const std::lock_guard lock(mutex_);
  const auto above = by_address_.upper_bound(data);
  if (above == by_address_.begin()) return {};
  const auto& [part, block] = *std::prev(above);
  const auto offset = static_cast<size_t>(data - part);
  if (offset > block.nbytes || nbytes > block.nbytes - offset) return {};
  return {block.id, offset};
}

std::shared_ptr<std::byte> Blocks::address(const Location& location, size_t nbytes,
                                           int rank) const {
  const std::lock_guard lock(mutex_);
  const Block* block = find(location.block);
  if (block == nullptr) {
    fail<CommError>(
        "rank {} works on shared memory block {}, which rank {} has freed: ranks must free shared "
        "memory after the last collective on it",
        rank, location.block, rank_);
  }
  if (location.offset > block->nbytes || nbytes > block->nbytes - location.offset) {
    fail<CommError>("rank {} names bytes {} to {} of shared memory block {}, which has {}", rank,
                    location.offset, location.offset + nbytes, location.block, block->nbytes);
  }
  return {block->segment, block->part(rank) + location.offset};
}

bool Blocks::per_host(const Location& location) const {
  const std::lock_guard lock(mutex_);
  const Block* block = find(location.block);
  return block != nullptr && block->stride == 0;
}

const Block* Blocks::find(int64_t id) const {
  const auto found = std::find_if(by_address_.begin(), by_address_.end(),
                                  [id](const auto& entry) { return entry.second.id == id; });
  return found == by_address_.end() ? nullptr : &found->second;
}

}  // namespace zerorun::shm
