#pragma once

#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_stream.h"

namespace zerorun::testing {

// A worker stream that begins some of its tasks late, at random: an order that nothing enforces
// shows. The draws depend on the seed only.
class DelayedStream final : public CpuStream {
 public:
  DelayedStream(std::string_view name, unsigned seed)
      : stream_(make_worker_stream(name)), random_(seed) {}

  void submit(std::function<void()> task) override {
    constexpr unsigned kEvery = 4;
    constexpr unsigned kMax = 150;  // microseconds
    const bool late = random_() % kEvery == 0;
    const std::chrono::microseconds delay(late ? random_() % kMax : 0);
    if (!late) return stream_->submit(std::move(task));
    stream_->submit([delay, task = std::move(task)] {
      std::this_thread::sleep_for(delay);
      task();
    });
  }
  Event record() override { return stream_->record(); }
  void wait(const Event& event) override { stream_->wait(event); }
  void synchronize() override { stream_->synchronize(); }
  bool is_inline() const override { return false; }

 private:
  const std::unique_ptr<CpuStream> stream_;
  std::minstd_rand random_;
};

// As a GPU's pool has it: memory that was freed is for the next one who asks for its size, and work
// that was submitted before may still use it.
class KeptMemory : public std::enable_shared_from_this<KeptMemory> {
 public:
  // Ordinary memory of `make` where none of the size is kept.
  Buffer take(size_t nbytes, const std::function<Buffer()>& make) {
    auto block = std::make_shared<Buffer>();
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = kept_.find(nbytes); found != kept_.end()) {
        *block = std::move(found->second);
        kept_.erase(found);
      }
    }
    if (!*block) *block = make();
    return {block->data(), nbytes, [self = shared_from_this(), block] {
              const std::lock_guard lock(self->mutex_);
              self->kept_.emplace(block->nbytes(), std::move(*block));
            }};
  }

 private:
  std::mutex mutex_;
  std::multimap<size_t, Buffer> kept_;
};

// A device computes on host memory, or beside a host that does.
enum class DelayedKind { host, accelerator };

// The CPU device with such streams. As an accelerator even the inline stream runs beside the
// caller, and host code may not touch its memory.
class DelayedDevice final : public CpuDevice {
 public:
  DelayedDevice(DelayedKind kind, unsigned seed) : CpuDevice({}), seed_(seed) {
    if (kind == DelayedKind::host) return;
    inline_ = make_stream("inline");
    host_ = std::make_unique<DelayedDevice>(DelayedKind::host, seed + 1);
  }

  Buffer allocate(size_t nbytes, MemoryCategory category) override {
    return kept_->take(nbytes, [&] { return CpuDevice::allocate(nbytes, category); });
  }
  Device& host() override { return host_ ? *host_ : *this; }
  std::unique_ptr<Stream> make_stream(std::string_view name) override {
    constexpr unsigned kNext = 7919;
    return std::make_unique<DelayedStream>(name, seed_ += kNext);
  }
  Stream& inline_stream() override { return inline_ ? *inline_ : CpuDevice::inline_stream(); }

 private:
  const std::shared_ptr<KeptMemory> kept_ = std::make_shared<KeptMemory>();  // ends after streams
  unsigned seed_;
  std::unique_ptr<DelayedDevice> host_;
  std::unique_ptr<Stream> inline_;
};

}  // namespace zerorun::testing
