#include "checkpoint/loading/device_copies.h"

#include <algorithm>
#include <utility>

#include "device/drain.h"

namespace zerorun {

namespace {

std::span<std::byte> bytes_of(TensorView view) { return {view.data, view.nbytes()}; }

// Calls visit(offset, chunk) with consecutive parts of the view, each of at most a block.
template <typename Visit>
void for_each_chunk(TensorView view, const Visit& visit) {
  const size_t element = size_of(view.dtype);
  const auto step = static_cast<int64_t>(DeviceCopies::kBlockNbytes / element);
  for (int64_t begin = 0; begin < view.numel; begin += step) {
    visit(static_cast<uint64_t>(begin) * element,
          view.slice(begin, std::min(step, view.numel - begin)));
  }
}

}  // namespace

DeviceCopies::~DeviceCopies() {
  if (blocks_[0].memory.data() != nullptr) drain(device_.inline_stream());
}

void DeviceCopies::complete(Block& block) {
  block.copied.synchronize();
  if (!block.use) return;
  const Use use = std::exchange(block.use, nullptr);
  use(block.offset, std::span<const std::byte>(block.memory.data(), block.nbytes));
}

DeviceCopies::Block& DeviceCopies::next_block() {
  Block& block = blocks_[std::exchange(next_, (next_ + 1) % blocks_.size())];
  if (block.memory.data() == nullptr) block.memory = device_.allocate_pinned(kBlockNbytes);
  complete(block);
  return block;
}

void DeviceCopies::download(TensorView view, bool on_host, const Use& use) {
  if (on_host || device_.is_host()) {
    finish();
    return use(0, bytes_of(view));
  }
  for_each_chunk(view, [&](uint64_t offset, TensorView chunk) {
    Block& block = next_block();
    device_.download(device_.inline_stream(), chunk, block.memory.data());
    block.copied = device_.inline_stream().record();
    block.nbytes = chunk.nbytes();
    block.offset = offset;
    block.use = use;
  });
}

void DeviceCopies::upload(TensorView view, bool on_host, const Fill& fill) {
  if (on_host || device_.is_host()) return fill(0, bytes_of(view));
  for_each_chunk(view, [&](uint64_t offset, TensorView chunk) {
    Block& block = next_block();
    fill(offset, std::span(block.memory.data(), chunk.nbytes()));
    device_.upload(device_.inline_stream(), block.memory.data(), chunk);
    block.copied = device_.inline_stream().record();
  });
}

void DeviceCopies::finish() {
  for (size_t i = 0; i < blocks_.size(); ++i) complete(blocks_[(next_ + i) % blocks_.size()]);
}

}  // namespace zerorun
