#include "offload/nvme_state_store.h"

#include "core/check.h"
#include "offload/pinned_arena.h"
#include "offload/state_store.h"
#include "os/file_descriptor.h"
#include "tests/common.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;

constexpr size_t kAll = SIZE_MAX;  // tensors have changed

// Changes a bit of the file behind the store's back, without O_DIRECT, which takes whole blocks.
void damage(int fd, off_t at) {
  const FileDescriptor file(
      ::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDWR | O_CLOEXEC));
  std::byte byte{};
  EXPECT_EQ(::pread(file.get(), &byte, 1, at), 1);
  byte ^= std::byte{4};
  EXPECT_EQ(::pwrite(file.get(), &byte, 1, at), 1);
  EXPECT_EQ(::fdatasync(file.get()), 0);
}

// A BlockIo that calls `after(block)` when a block was read or written.
class WatchedIo final : public BlockIo {
 public:
  using After = std::function<void(Direction, const Block&)>;
  WatchedIo(const OpenFile& file, After after)
      : inner_(make_thread_io(file, 2)), after_(std::move(after)) {}
  void transfer(Direction direction, std::span<const Block> blocks, const Visit& visit) override {
    inner_->transfer(direction, blocks, visit);
    for (const Block& block : blocks) after_(direction, block);
  }
  std::string_view name() const override { return "watched"; }

 private:
  const std::unique_ptr<BlockIo> inner_;
  const After after_;
};

std::vector<StateLayout> some_chunks() {
  std::vector<StateLayout> chunks;
  for (int i = 0; i < 7; ++i) {
    chunks.push_back({1000 + 777 * i, {{"master"}, {"exp_avg"}, {"exp_avg_sq"}}});
  }
  return chunks;
}

struct NvmeStateStoreTest : ::testing::Test {
  NvmeStateStoreTest() {
    options_.folder = test_paths::build();
    options_.label = "test states";
    options_.buffer_count = 3;
    options_.aio = {.block_size = 8192, .queue_depth = 3};
  }
  std::unique_ptr<StateStore> make(const std::vector<StateLayout>& chunks,
                                   const BlockIoFactory& factory = {}) {
    arena_.emplace(*device_, nvme_staging_nbytes(chunks, options_.buffer_count));
    auto store = make_nvme_state_store(*device_, *arena_, chunks, options_, factory);
    EXPECT_EQ(arena_->taken(), arena_->nbytes());
    return store;
  }
  // Calls `after` when a block was read or written.
  using After = std::function<void(const OpenFile&, Direction, const Block&)>;
  std::unique_ptr<StateStore> make_watched(const std::vector<StateLayout>& chunks,
                                           const After& after) {
    return make(chunks, [after](const OpenFile& file, auto) {
      return std::make_unique<WatchedIo>(
          file, [=](Direction direction, const Block& block) { after(file, direction, block); });
    });
  }
  // A store of some chunks; `fd` becomes its file's.
  std::unique_ptr<StateStore> make_with_file(int& fd) {
    return make(some_chunks(), [&fd](const OpenFile& file, auto) {
      fd = file.fd;
      return make_thread_io(file, 2);
    });
  }
  // Writes value + element to the chunk's first tensor.
  void write(StateStore& store, int chunk, float value) {
    const TensorView view = store.acquire(chunk, *stream_, Content::needed)[0];
    stream_->synchronize();
    std::iota(view.span<float>().begin(), view.span<float>().end(), value);
    store.release(chunk, *stream_, kAll);
  }
  void expect_content(StateStore& store, int chunk, float value) {
    const TensorView view = store.acquire(chunk, *stream_, Content::needed)[0];
    stream_->synchronize();
    for (int64_t i = 0; i < view.numel; ++i) {
      ASSERT_EQ(view.as<float>()[i], value + static_cast<float>(i)) << "chunk " << chunk;
    }
    store.release(chunk, *stream_, 0);
  }

  const std::shared_ptr<Device> device_ = make_cpu_device();
  NvmeOptions options_;
  std::optional<PinnedArena> arena_;
  std::unique_ptr<Stream> stream_ = device_->make_stream("test");
};

TEST_F(NvmeStateStoreTest, WhatIsWrittenAtRestIsReadOnceItIsAccepted) {
  const auto store = make(some_chunks());
  write(*store, 2, 5.0F);
  const TensorView view = store->stored(2)[0];
  EXPECT_EQ(view.as<float>()[1], 6.0F);
  std::iota(view.span<float>().begin(), view.span<float>().end(), 50.0F);
  store->accept_changes();
  expect_content(*store, 2, 50.0F);
  write(*store, 2, 70.0F);
  EXPECT_EQ(store->stored(2)[0].as<float>()[1], 71.0F);
  EXPECT_EQ(view.as<float>()[1], 71.0F);
  expect_content(*store, 2, 70.0F);
}

TEST_F(NvmeStateStoreTest, AChangeThatWasNotAcceptedIsAnError) {
  const auto store = make(some_chunks());
  write(*store, 2, 5.0F);
  store->stored(2)[0].as<float>()[0] = -1.0F;
  store->acquire(2, *stream_, Content::needed);
  EXPECT_THROW(stream_->synchronize(), IoError);
}

TEST_F(NvmeStateStoreTest, LeavesNoFileBehindEvenWhileItRuns) {
  const fs::path folder = fs::path(test_paths::build()) / fmt::format("nvme_{}", ::getpid());
  fs::create_directory(folder);
  options_.folder = folder;
  const auto store = make(some_chunks());
  write(*store, 0, 1.0F);
  EXPECT_TRUE(fs::is_empty(folder));
  fs::remove(folder);
  expect_content(*store, 0, 1.0F);
}

TEST_F(NvmeStateStoreTest, ADamagedBlockIsAnErrorWithFileAndOffset) {
  for (int at = 0; at < 20; ++at) {
    stream_ = device_->make_stream("test");  // a stream keeps its error
    int written = 0;
    const auto store =
        make_watched(some_chunks(), [&](const OpenFile& file, Direction direction, const Block& b) {
          if (direction == Direction::write && written++ == at)
            damage(file.fd, static_cast<off_t>(b.offset));
        });
    for (int chunk = 0; chunk < 7; ++chunk) write(*store, chunk, 3.0F);
    const std::string message = error_of<IoError>([&] {
      for (int chunk = 0; chunk < 7; ++chunk) {
        store->acquire(chunk, *stream_, Content::needed);
        store->release(chunk, *stream_, 0);
      }
      store->stored(0);
    });
    EXPECT_THAT(message,
                ::testing::MatchesRegex(".*/test states: the [0-9]+ bytes at offset [0-9]+ .*"));
    EXPECT_THAT(message, HasSubstr("are not what was written there"));
  }
}

TEST_F(NvmeStateStoreTest, AFullDiskIsAnErrorAtWhateverBlockItHappens) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    const auto direction = random() % 2 == 0 ? Direction::read : Direction::write;
    const int at = static_cast<int>(random() % 40);
    std::atomic<int> seen = 0;
    const auto store =
        make_watched(some_chunks(), [&](const OpenFile& file, Direction which, const Block& b) {
          if (which == direction && seen++ == at) {
            fail_transfer(file, which, b.offset, b.nbytes, ENOSPC);
          }
        });
    const std::unique_ptr<Stream> stream = device_->make_stream("test");
    const auto pass = [&] {
      for (int round2 = 0; round2 < 4; ++round2) {
        for (int chunk = 0; chunk < 7; ++chunk) {
          store->acquire(chunk, *stream, Content::needed);
          store->release(chunk, *stream, kAll);
        }
      }
      stream->synchronize();
      store->stored(0);
    };
    EXPECT_ERROR_OF(IoError, pass(), "No space left on device", "/test states: cannot ")
        << "round " << round;
  }
}

TEST_F(NvmeStateStoreTest, WhatIsExpectedIsReadOnceBeforeItIsAcquiredAndNeverStale) {
  std::atomic<int> reads = 0;
  const std::vector<StateLayout> chunks(4, {1000, {{"master", DType::fp32}}});
  const auto store = make_watched(chunks, [&](const OpenFile&, Direction direction, const Block&) {
    if (direction == Direction::read) ++reads;
  });
  for (int chunk = 0; chunk < 4; ++chunk) write(*store, chunk, 100.0F * static_cast<float>(chunk));
  const std::vector<int> order = {0, 1, 2, 3};
  store->expect(order);  // with three buffers, the first two
  expect_content(*store, 0, 0.0F);
  expect_content(*store, 1, 100.0F);
  EXPECT_EQ(reads, 2);
  expect_content(*store, 2, 200.0F);
  EXPECT_EQ(reads, 3);
  store->expect(order);
  write(*store, 1, 500.0F);  // not what was expected first
  expect_content(*store, 0, 0.0F);
  expect_content(*store, 1, 500.0F);
  store->expect(order);
  EXPECT_EQ(store->stored(3)[0].as<float>()[1], 301.0F);
  store->stored(0)[0].as<float>()[0] = 7.0F;
  store->accept_changes();
  const TensorView changed = store->acquire(0, *stream_, Content::needed)[0];
  stream_->synchronize();
  EXPECT_EQ(changed.as<float>()[0], 7.0F);
  store->release(0, *stream_, 0);
  reads = 0;  // at rest, what is asked for, and once
  EXPECT_EQ(store->stored(2)[0].as<float>()[1], 201.0F);
  store->accept_changes();
  EXPECT_EQ(store->stored(2)[0].as<float>()[2], 202.0F);
  EXPECT_EQ(reads, 1);
}

TEST_F(NvmeStateStoreTest, WhatWasAcceptedIsCheckedAsWhatWasReleased) {
  int fd = -1;
  const auto store = make_with_file(fd);
  write(*store, 0, 5.0F);
  store->stored(0)[0].as<float>()[0] = 8.0F;
  store->accept_changes();
  damage(fd, 0);
  store->acquire(0, *stream_, Content::needed);
  EXPECT_THROW(stream_->synchronize(), IoError);
}

TEST_F(NvmeStateStoreTest, WhatWasOnlyLookedAtBeforeAStepIsNotAcceptedAfterIt) {
  int fd = -1;
  const auto store = make_with_file(fd);
  write(*store, 0, 5.0F);
  store->stored(0);
  write(*store, 0, 6.0F);
  stream_->synchronize();
  store->stored(1);  // waits for what is being written
  damage(fd, 0);
  store->accept_changes();
  store->acquire(0, *stream_, Content::needed);
  EXPECT_THROW(stream_->synchronize(), IoError);
}

enum class Home { device, host };

struct ResidentStateStoreTest : ::testing::TestWithParam<Home> {
  std::unique_ptr<StateStore> make(const std::vector<StateLayout>& chunks) {
    if (GetParam() == Home::device) return make_device_state_store(*device_, chunks);
    size_t nbytes = 0;
    for (const StateLayout& chunk : chunks) nbytes += host_state_nbytes(chunk);
    arena_ = std::make_unique<PinnedArena>(*device_, nbytes);
    auto store = make_host_state_store(*arena_, chunks);
    EXPECT_EQ(arena_->taken(), arena_->nbytes());
    return store;
  }
  int64_t live(MemoryCategory category) const { return device_->memory_use(category).live_bytes; }

  const std::shared_ptr<Device> device_ = make_cpu_device();
  Stream& stream_ = device_->inline_stream();
  std::unique_ptr<PinnedArena> arena_;
};

TEST_P(ResidentStateStoreTest, WhatIsOffloadedLeavesTheDeviceAndComesBackWithItsNextUse) {
  const auto store = make({{1024, {{"master"}, {"exp_avg"}}}, {0, {{"exp_avg"}}}});
  const std::array before = {live(MemoryCategory::optimizer), live(MemoryCategory::pinned)};
  store->acquire(0, stream_, Content::needed)[1].as<float>()[1023] = 5.0F;
  store->release(0, stream_, SIZE_MAX);
  for (int round = 0; round < 2; ++round) {
    store->offload();
    store->offload();
    EXPECT_EQ(live(MemoryCategory::optimizer), 0);
    EXPECT_EQ(live(MemoryCategory::pinned), before[0] + before[1]);
    if (round == 0) store->reload();
    EXPECT_EQ(store->stored(0)[1].as<float>()[1023], 5.0F);
    EXPECT_EQ(live(MemoryCategory::optimizer), before[0]);
    EXPECT_EQ(live(MemoryCategory::pinned), before[1]);
    EXPECT_EQ(store->acquire(0, stream_, Content::needed)[1].as<float>()[1023], 5.0F);
  }
  EXPECT_TRUE(store->stored(1)[0].empty());
}

TEST_P(ResidentStateStoreTest, ChunksThatDoNotFitAreATypedError) {
  EXPECT_THROW(make({{int64_t{1} << 55, {{"master"}}}}), Error);
  EXPECT_EQ(live(MemoryCategory::optimizer), 0);
  EXPECT_EQ(live(MemoryCategory::pinned), 0);
}

INSTANTIATE_TEST_SUITE_P(Homes, ResidentStateStoreTest, ::testing::Values(Home::device, Home::host),
                         [](const auto& home) {
                           return home.param == Home::device ? "Device" : "Host";
                         });

TEST(MemoryCheck, LockingMoreThanTheLimitIsSaidWithWhatToDo) {
  const HostLimits limits{.lockable = int64_t{8} << 20};
  EXPECT_EQ(locking_advice(limits, size_t{4} << 20, 2), "");
  EXPECT_EQ(locking_advice({}, size_t{4} << 40, 2), "");
  const std::string advice = locking_advice(limits, size_t{6} << 20, 2);
  EXPECT_THAT(advice, HasAll("12.0 MiB of buffers on this host", "`ulimit -l` allows 8.0 MiB",
                             "ulimit memlock=-1"));
}

TEST(MemoryCheck, TooLittleIsAnErrorThatSaysWhatIsMissingWhere) {
  HostLimits limits{.available = int64_t{16} << 30};
  check_host_memory(limits, size_t{8} << 30, 2, "offloading");
  check_host_memory({}, size_t{1} << 50, 8, "a host whose limits are unknown");
  const auto message = [&](size_t nbytes) {
    return error_of<ConfigError>([&] { check_host_memory(limits, nbytes, 2, "offloading"); });
  };
  EXPECT_THAT(message(size_t{9} << 30),
              HasSubstr("offloading needs 9.0 GiB of host memory for each of 2 ranks, 18.0 GiB "
                        "in all; the machine has 16.0 GiB left"));
  limits.group_available = int64_t{1} << 30;
  EXPECT_THAT(message(size_t{1} << 30), HasSubstr("the control group has 1.0 GiB left"));
}

// Copies may not cross from one block to the next.
TEST(PinnedArenaTest, EachViewLiesInOneBlockAndAllFit) {
  const auto device = make_cpu_device();
  constexpr int64_t kNumel = 48;  // 192 bytes: two in a block
  constexpr int kViews = 7;
  PinnedArena arena(*device, kViews * PinnedArena::nbytes_of(kNumel, DType::fp32), 512);
  std::vector<TensorView> views;
  for (int i = 0; i < kViews; ++i) {
    views.push_back(arena.take(kNumel, DType::fp32));
    std::fill_n(views.back().as<float>(), kNumel, static_cast<float>(i));
  }
  for (int i = 0; i < kViews; ++i) {
    EXPECT_THAT(std::vector<float>(views[i].as<float>(), views[i].as<float>() + kNumel),
                ::testing::Each(static_cast<float>(i)));
  }
  EXPECT_THROW(arena.take(1, DType::fp32), InternalError);
  PinnedArena one(*device, PinnedArena::nbytes_of(1024, DType::fp32), 512);
  EXPECT_EQ(one.take(1024, DType::fp32).numel, 1024);  // larger than a block
}

}  // namespace
}  // namespace zerorun::testing
