#include "tests/device/conformance.h"

namespace zerorun::testing {
namespace {

struct MemoryConformance : DeviceConformance {
  MemoryUse use(MemoryCategory category) const { return device_->memory_use(category); }
};

TEST_P(MemoryConformance, BlocksAreAlignedAndWritableToTheLastByte) {
  for (const size_t nbytes :
       {size_t{0}, size_t{1}, size_t{63}, size_t{4097}, size_t{2} << 20, (size_t{5} << 20) + 3}) {
    const Buffer buffer = device_->allocate(nbytes, MemoryCategory::other);
    EXPECT_EQ(buffer.nbytes(), nbytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0U);
    const auto numel = static_cast<int64_t>(nbytes);
    const TensorView view = view_of(buffer, DType::uint8, numel);
    device_->fill(*stream_, view, 7.0F);
    std::vector<uint8_t> bytes(nbytes);
    device_->download(*stream_, view, bytes.data());
    stream_->synchronize();
    EXPECT_EQ(bytes, std::vector<uint8_t>(nbytes, 7));
  }
}

TEST_P(MemoryConformance, LedgerCountsLiveAndPeakBytesByCategory) {
  EXPECT_EQ(use(MemoryCategory::gradients).live_bytes, 0);
  {
    const Buffer first = device_->allocate(1000, MemoryCategory::gradients);
    Buffer second = device_->allocate(size_t{3} << 20, MemoryCategory::gradients);
    EXPECT_EQ(use(MemoryCategory::gradients).live_bytes, 1000 + (3 << 20));
    second = Buffer();
    EXPECT_EQ(use(MemoryCategory::gradients).live_bytes, 1000);
  }
  EXPECT_EQ(use(MemoryCategory::gradients).live_bytes, 0);
  EXPECT_EQ(use(MemoryCategory::gradients).peak_bytes, 1000 + (3 << 20));
  EXPECT_EQ(use(MemoryCategory::parameters).peak_bytes, 0);
}

TEST_P(MemoryConformance, AccountCountsForeignMemoryWhileItsHandleLives) {
  std::shared_ptr<void> handle = device_->account(500, MemoryCategory::buckets);
  const std::shared_ptr<void> copy = handle;
  handle.reset();
  EXPECT_EQ(use(MemoryCategory::buckets).live_bytes, 500);
  const Buffer own = device_->allocate(70, MemoryCategory::buckets);
  EXPECT_EQ(use(MemoryCategory::buckets).live_bytes, 570);
}

TEST_P(MemoryConformance, BuffersMayOutliveTheirDevice) {
  const Buffer buffer = device_->allocate(size_t{4} << 20, MemoryCategory::other);
  const std::shared_ptr<void> handle = device_->account(8, MemoryCategory::other);
  stream_.reset();
  device_.reset();
  EXPECT_TRUE(buffer);
}

TEST_P(MemoryConformance, RefusalNamesWhatEachCategoryHolds) {
  const Buffer held = device_->allocate(size_t{3} << 20, MemoryCategory::optimizer);
  for (const size_t nbytes : {size_t{1} << 60, std::numeric_limits<size_t>::max()}) {
    EXPECT_ERROR_OF(DeviceError, device_->allocate(nbytes, MemoryCategory::activations),
                    "activations", "optimizer 3.0 MiB")
        << nbytes;
  }
  EXPECT_EQ(use(MemoryCategory::activations).peak_bytes, 0);
}

TEST_P(MemoryConformance, LedgerIsExactUnderConcurrentUse) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 200; ++i) {
        const Buffer buffer = device_->allocate(100, MemoryCategory::other);
        const std::shared_ptr<void> handle = device_->account(10, MemoryCategory::other);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(use(MemoryCategory::other).live_bytes, 0);
  EXPECT_GE(use(MemoryCategory::other).peak_bytes, 110);
  EXPECT_LE(use(MemoryCategory::other).peak_bytes, 440);
}

TEST_P(MemoryConformance, PinnedMemoryIsPageAlignedHostMemoryThatCopiesReach) {
  for (const size_t nbytes : {size_t{1} << 14, size_t{5} << 20}) {
    const Buffer pinned = device_->allocate_pinned(nbytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pinned.data()) % 4096, 0U);
    EXPECT_EQ(use(MemoryCategory::pinned).live_bytes, static_cast<int64_t>(nbytes));
    Device& host = device_->host();
    EXPECT_EQ(&host.host(), &host);
    const auto numel = static_cast<int64_t>(nbytes / sizeof(float));
    host.fill(host.inline_stream(), view_of(pinned, DType::fp32, numel), 3.0F);
    const Buffer buffer = device_->allocate(nbytes, MemoryCategory::other);
    const std::unique_ptr<Stream> stream = device_->make_stream("copies");
    device_->upload(*stream, pinned.data(), view_of(buffer, DType::fp32, numel));
    stream->synchronize();
    host.fill(host.inline_stream(), view_of(pinned, DType::fp32, numel), 0.0F);
    device_->download(*stream, view_of(buffer, DType::fp32, numel), pinned.data());
    stream->synchronize();
    EXPECT_EQ(view_of(pinned, DType::fp32, numel).as<float>()[numel - 1], 3.0F);
  }
  EXPECT_EQ(use(MemoryCategory::pinned).live_bytes, 0);
}

ZR_ON_ALL_DEVICES(MemoryConformance);

}  // namespace
}  // namespace zerorun::testing
