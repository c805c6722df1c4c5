#include "offload/block_io.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <exception>
#include <mutex>
#include <system_error>
#include <vector>

#include "core/check.h"
#include "device/cpu/cpu_stream.h"

namespace zerorun {

namespace {

void transfer_block(const OpenFile& file, Direction direction, const Block& block) {
  const std::span<std::byte> bytes(block.data, block.nbytes);
  const size_t done = direction == Direction::read ? read_at(file.fd, block.offset, bytes)
                                                   : write_at(file.fd, block.offset, bytes);
  if (done == bytes.size()) return;
  fail_transfer(file, direction, block.offset + done, bytes.size() - done, errno);
}

class ThreadIo final : public BlockIo {
 public:
  ThreadIo(OpenFile file, int threads) : file_(std::move(file)) {
    for (int i = 0; i < threads; ++i) {
      workers_.push_back(make_worker_stream("zerorun-io"));
      serve_offloading(*workers_.back());
    }
  }

  void transfer(Direction direction, std::span<const Block> blocks, const Visit& visit) override {
    std::atomic<size_t> next = 0;
    std::mutex mutex;
    std::exception_ptr error;
    const auto work = [&] {
      try {
        for (size_t i = next++; i < blocks.size(); i = next++) {
          if (direction == Direction::write) visit(i);
          transfer_block(file_, direction, blocks[i]);
          if (direction == Direction::read) visit(i);
        }
      } catch (...) {
        next = blocks.size();
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    };
    for (const auto& worker : workers_) worker->submit(work);
    for (const auto& worker : workers_) worker->synchronize();
    if (error) std::rethrow_exception(error);
  }

  std::string_view name() const override { return "threads"; }

 private:
  const OpenFile file_;
  std::vector<std::unique_ptr<CpuStream>> workers_;
};

}  // namespace

std::unique_ptr<BlockIo> make_thread_io(const OpenFile& file, int threads) {
  return std::make_unique<ThreadIo>(file, threads);
}

void fail_transfer(const OpenFile& file, Direction direction, uint64_t offset, size_t nbytes,
                   int error) {
  fail<IoError>("{}: cannot {} {} bytes at offset {}: {}", file.path,
                direction == Direction::read ? "read" : "write", nbytes, offset,
                error == 0 ? "the file ends before" : std::generic_category().message(error));
}

double transfer_rate(BlockIo& io, Direction direction, std::span<std::byte> memory, size_t block,
                     uint64_t nbytes) {
  std::vector<Block> blocks;
  for (uint64_t at = 0; at + block <= nbytes; at += block) {
    blocks.push_back({memory.data() + at % (memory.size() / block * block), block, at});
  }
  const auto start = std::chrono::steady_clock::now();
  io.transfer(direction, blocks, [](size_t) {});
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return static_cast<double>(blocks.size() * block) / taken.count();
}

std::unique_ptr<BlockIo> make_block_io(const OpenFile& file, const AioConfig& config,
                                       std::span<const std::span<std::byte>> memory) {
  if (auto uring = make_uring_io(file, static_cast<int>(config.queue_depth), memory)) return uring;
  return make_thread_io(file, static_cast<int>(std::max(config.queue_depth, config.threads)));
}

}  // namespace zerorun
