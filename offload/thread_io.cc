#include <atomic>
#include <cerrno>
#include <exception>
#include <mutex>
#include <vector>

#include "device/cpu/cpu_stream.h"
#include "offload/block_io.h"

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

}  // namespace zerorun
