#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <thread>
#include <vector>

#include "offload/block_io.h"

namespace zerorun {

namespace {

class UringIo final : public BlockIo {
 public:
  // `ring` is initialised; this owns it.
  UringIo(OpenFile file, const io_uring& ring, size_t depth,
          std::span<const std::span<std::byte>> memory)
      : file_(std::move(file)), ring_(ring), depth_(depth), memory_(memory.begin(), memory.end()) {
    std::vector<iovec> vectors;
    for (const auto& part : memory_) vectors.push_back({part.data(), part.size()});
    // Refused beyond the limit of locked memory: transfers then map their pages one by one.
    registered_ =
        !vectors.empty() && io_uring_register_buffers(&ring_, vectors.data(),
                                                      static_cast<unsigned>(vectors.size())) == 0;
  }
  UringIo(const UringIo&) = delete;
  UringIo& operator=(const UringIo&) = delete;
  ~UringIo() override { io_uring_queue_exit(&ring_); }

  void transfer(Direction direction, std::span<const Block> blocks, const Visit& visit) override {
    std::vector<size_t> done(blocks.size(), 0);  // bytes
    std::exception_ptr error;
    const auto guarded = [&](const auto& action) {
      try {
        action();
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    };
    size_t next = 0;
    size_t running = 0;
    const auto fill_queue = [&] {
      while (running < depth_ && next < blocks.size() && !error) {
        guarded([&] {
          if (direction == Direction::write) visit(next);
          submit(direction, blocks[next], next, 0);
          ++next;
          ++running;
        });
      }
    };
    for (fill_queue(); running > 0; fill_queue()) {
      const Completion completion = wait();
      const size_t index = completion.index;
      const int result = completion.result;
      --running;
      if (result == -EINTR || result == -EAGAIN || result > 0) {
        done[index] += static_cast<size_t>(std::max(result, 0));
        if (done[index] == blocks[index].nbytes) {
          fill_queue();  // before the block is looked at, so that the disk has its next task
          if (direction == Direction::read) guarded([&] { visit(index); });
        } else if (!error) {
          guarded([&] { submit(direction, blocks[index], index, done[index]); });
          if (!error) ++running;
        }
      } else {
        guarded([&] {
          fail_transfer(file_, direction, blocks[index].offset + done[index],
                        blocks[index].nbytes - done[index], -result);
        });
      }
    }
    if (error) std::rethrow_exception(error);
  }

  std::string_view name() const override {
    return registered_ ? "io_uring, registered buffers" : "io_uring";
  }

 private:
  static constexpr uint64_t kNobody = ~uint64_t{0};

  struct Completion {
    size_t index = 0;
    int result = 0;
  };

  // Throws with nothing left in the queue that would touch the block later.
  void submit(Direction direction, const Block& block, size_t index, size_t from) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {  // what failed submissions left fills the queue
      const int submitted = io_uring_submit(&ring_);
      entry = io_uring_get_sqe(&ring_);
      if (entry == nullptr) {
        fail_transfer(file_, direction, block.offset + from, block.nbytes - from,
                      submitted < 0 ? -submitted : EBUSY);
      }
    }
    std::byte* const data = block.data + from;
    const auto nbytes = static_cast<unsigned>(block.nbytes - from);
    const int buffer = buffer_of(data);
    const bool reads = direction == Direction::read;
    if (buffer >= 0 && reads) {
      io_uring_prep_read_fixed(entry, file_.fd, data, nbytes, block.offset + from, buffer);
    } else if (buffer >= 0) {
      io_uring_prep_write_fixed(entry, file_.fd, data, nbytes, block.offset + from, buffer);
    } else if (reads) {
      io_uring_prep_read(entry, file_.fd, data, nbytes, block.offset + from);
    } else {
      io_uring_prep_write(entry, file_.fd, data, nbytes, block.offset + from);
    }
    io_uring_sqe_set_data64(entry, index);
    int submitted = 0;
    do {
      submitted = io_uring_submit(&ring_);
    } while (submitted == -EINTR || submitted == -EAGAIN ||
             (submitted > 0 && io_uring_sq_ready(&ring_) > 0));
    if (submitted > 0) return;
    // The kernel has not taken the entry, and takes it with the next submission: it does nothing.
    io_uring_prep_nop(entry);
    io_uring_sqe_set_data64(entry, kNobody);
    fail_transfer(file_, direction, block.offset + from, nbytes, -submitted);
  }

  // Waits for a block; there is one running. Does not throw: as long as the kernel holds a block,
  // it must not go. Where waiting is refused, the queue is looked at from time to time.
  Completion wait() noexcept {
    while (true) {
      io_uring_cqe* entry = nullptr;
      if (io_uring_wait_cqe(&ring_, &entry) != 0 && io_uring_peek_cqe(&ring_, &entry) != 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        continue;
      }
      const uint64_t index = io_uring_cqe_get_data64(entry);
      const int result = entry->res;
      io_uring_cqe_seen(&ring_, entry);
      if (index != kNobody) return {static_cast<size_t>(index), result};
    }
  }

  int buffer_of(const std::byte* data) const {
    if (!registered_) return -1;
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (data >= memory_[i].data() && data < memory_[i].data() + memory_[i].size()) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }

  const OpenFile file_;
  io_uring ring_;
  const size_t depth_;
  const std::vector<std::span<std::byte>> memory_;
  bool registered_ = false;
};

}  // namespace

std::unique_ptr<BlockIo> make_uring_io(const OpenFile& file, int queue_depth,
                                       std::span<const std::span<std::byte>> memory) {
  io_uring ring{};
  if (io_uring_queue_init(static_cast<unsigned>(queue_depth), &ring, 0) != 0) return nullptr;
  return std::make_unique<UringIo>(file, ring, static_cast<size_t>(queue_depth), memory);
}

}  // namespace zerorun
