#include "offload/nvme_state_store.h"

#include "core/check.h"
#include "tests/common.h"
#include "tests/paths.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;

enum class Io { best, threads };

// The file without O_DIRECT.
int open_buffered(int fd) {
  return ::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDWR | O_CLOEXEC);
}

// A BlockIo that fails its `fail_at`th block, with the error of a full disk, or changes it.
class FaultyIo final : public BlockIo {
 public:
  enum class Fault { none, no_space, damage };
  FaultyIo(std::unique_ptr<BlockIo> inner, OpenFile file, Direction direction, int fail_at,
           Fault fault)
      : inner_(std::move(inner)),
        file_(std::move(file)),
        direction_(direction),
        fail_at_(fail_at),
        fault_(fault) {}
  void transfer(Direction direction, std::span<const Block> blocks, const Visit& visit) override {
    inner_->transfer(direction, blocks, visit);
    if (direction != direction_) return;
    for (const Block& block : blocks) {
      if (seen_++ != fail_at_) continue;
      if (fault_ == Fault::no_space) {
        fail_transfer(file_, direction, block.offset, block.nbytes, ENOSPC);
      }
      // Behind the store's back: one bit of what is in the file.
      std::byte byte{};
      EXPECT_EQ(::pread(buffered(), &byte, 1, static_cast<off_t>(block.offset)), 1);
      byte ^= std::byte{4};
      EXPECT_EQ(::pwrite(buffered(), &byte, 1, static_cast<off_t>(block.offset)), 1);
      EXPECT_EQ(::fdatasync(buffered()), 0);
    }
  }
  std::string_view name() const override { return "faulty"; }
  ~FaultyIo() override {
    if (buffered_ >= 0) ::close(buffered_);
  }

 private:
  // The same file without O_DIRECT, which would ask for whole blocks.
  int buffered() {
    if (buffered_ < 0) {
      buffered_ = open_buffered(file_.fd);
    }
    return buffered_;
  }

  std::unique_ptr<BlockIo> inner_;
  OpenFile file_;
  Direction direction_;
  int fail_at_;
  Fault fault_;
  int seen_ = 0;
  int buffered_ = -1;
};

std::vector<StateLayout> some_chunks(int count = 7) {
  std::vector<StateLayout> chunks;
  for (int i = 0; i < count; ++i) {
    chunks.push_back({1000 + 777 * i, {{"master"}, {"exp_avg"}, {"exp_avg_sq"}}});
  }
  return chunks;
}

class NvmeStateStoreTest : public ::testing::TestWithParam<Io> {
 protected:
  NvmeStateStoreTest() {
    options_.folder = test_paths::build();
    options_.label = "test states";
    options_.buffer_count = 3;
    options_.aio = {.block_size = 8192, .queue_depth = 3};
  }
  std::unique_ptr<StateStore> make(const std::vector<StateLayout>& chunks,
                                   const BlockIoFactory& factory = {}) {
    arena_.emplace(*device_, nvme_staging_nbytes(chunks, options_.buffer_count));
    BlockIoFactory make_io = factory;
    if (!make_io && GetParam() == Io::threads) {
      make_io = [](const OpenFile& file, auto) { return make_thread_io(file, 3); };
    }
    auto store = make_nvme_state_store(*device_, *arena_, chunks, options_, make_io);
    EXPECT_EQ(arena_->taken(), arena_->nbytes());
    return store;
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
    const TensorView view = store.acquire(chunk, *stream_)[0];
    stream_->synchronize();
    std::iota(view.span<float>().begin(), view.span<float>().end(), value);
    store.release(chunk, *stream_);
  }
  void expect_content(StateStore& store, int chunk, float value) {
    const TensorView view = store.acquire(chunk, *stream_)[0];
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

TEST_P(NvmeStateStoreTest, ChunksComeBackAsTheyWereReleasedThroughFewerBuffers) {
  const auto store = make(some_chunks());
  for (int round = 0; round < 3; ++round) {
    for (int chunk = 0; chunk < 7; ++chunk) {
      write(*store, chunk, static_cast<float>(100000 * round + 10000 * chunk));
    }
    for (int chunk = 7; chunk-- > 0;) {
      expect_content(*store, chunk, static_cast<float>(100000 * round + 10000 * chunk));
    }
  }
}

TEST_P(NvmeStateStoreTest, WhatWasNeverWrittenIsZero) {
  const auto store = make(some_chunks());
  const std::vector<TensorView> views = store->acquire(3, *stream_);
  stream_->synchronize();
  for (const TensorView& view : views) {
    for (const float value : view.span<float>()) ASSERT_EQ(value, 0.0F);
  }
  views[0].as<float>()[5] = 7;
  store->release(3, *stream_, 1);
  EXPECT_EQ(store->stored(3)[0].as<float>()[5], 7.0F);
  EXPECT_EQ(store->stored(3)[2].as<float>()[5], 0.0F);
  EXPECT_EQ(store->stored(6)[2].as<float>()[5], 0.0F);
}

TEST_P(NvmeStateStoreTest, WhatIsWrittenAtRestIsReadOnceItIsAccepted) {
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

TEST_P(NvmeStateStoreTest, AChangeThatWasNotAcceptedIsAnError) {
  const auto store = make(some_chunks());
  write(*store, 2, 5.0F);
  store->stored(2)[0].as<float>()[0] = -1.0F;
  store->acquire(2, *stream_);
  EXPECT_THROW(stream_->synchronize(), IoError);
}

TEST_P(NvmeStateStoreTest, BytesAreCountedWhereTheyAre) {
  const std::vector<StateLayout> chunks = {{1024, {{"master"}, {"exp_avg"}}}, {1, {{"master"}}}};
  const auto store = make(chunks);
  EXPECT_EQ(device_->memory_use(MemoryCategory::nvme).live_bytes, 2 * 4096 + 4096);
  EXPECT_EQ(device_->memory_use(MemoryCategory::pinned).live_bytes, 3 * 2 * 4096);
}

TEST_P(NvmeStateStoreTest, LeavesNoFileBehindEvenWhileItRuns) {
  const fs::path folder = fs::path(test_paths::build()) / fmt::format("nvme_{}", ::getpid());
  fs::create_directory(folder);
  options_.folder = folder;
  const auto store = make(some_chunks());
  write(*store, 0, 1.0F);
  EXPECT_TRUE(fs::is_empty(folder));
  fs::remove(folder);
  expect_content(*store, 0, 1.0F);
}

TEST_P(NvmeStateStoreTest, ADamagedBlockIsAnErrorWithFileAndOffset) {
  for (int at = 0; at < 20; ++at) {
    stream_ = device_->make_stream("test");  // a stream keeps its error
    const auto store = make(some_chunks(), [&](const OpenFile& file, auto) {
      return std::make_unique<FaultyIo>(make_thread_io(file, 2), file, Direction::write, at,
                                        FaultyIo::Fault::damage);
    });
    for (int chunk = 0; chunk < 7; ++chunk) write(*store, chunk, 3.0F);
    std::string message;
    try {
      for (int chunk = 0; chunk < 7; ++chunk) {
        store->acquire(chunk, *stream_);
        store->release(chunk, *stream_, 0);
      }
      store->stored(0);
    } catch (const IoError& error) {
      message = error.what();
    }
    EXPECT_THAT(message,
                ::testing::MatchesRegex(".*/test states: the [0-9]+ bytes at offset [0-9]+ .*"));
    EXPECT_THAT(message, HasSubstr("are not what was written there"));
  }
}

TEST_P(NvmeStateStoreTest, AFullDiskIsAnErrorAtWhateverBlockItHappens) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    const auto direction = random() % 2 == 0 ? Direction::read : Direction::write;
    const int at = static_cast<int>(random() % 40);
    const auto store = make(some_chunks(), [&](const OpenFile& file, auto) {
      return std::make_unique<FaultyIo>(make_thread_io(file, 2), file, direction, at,
                                        FaultyIo::Fault::no_space);
    });
    const std::unique_ptr<Stream> stream = device_->make_stream("test");
    const auto pass = [&] {
      for (int round2 = 0; round2 < 4; ++round2) {
        for (int chunk = 0; chunk < 7; ++chunk) {
          store->acquire(chunk, *stream);
          store->release(chunk, *stream);
        }
      }
      stream->synchronize();
      store->stored(0);
    };
    try {
      pass();
      ADD_FAILURE() << "no error in round " << round;
    } catch (const IoError& error) {
      EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
      EXPECT_THAT(error.what(), HasSubstr("/test states: cannot "));
    }
  }
}

TEST_P(NvmeStateStoreTest, MoreThanTheDiskHasIsAnErrorBeforeTraining) {
  const std::vector<StateLayout> chunks(
      1 << 20, {int64_t{1} << 32, {{"master"}, {"exp_avg"}, {"exp_avg_sq"}}});
  try {
    PinnedArena none(*device_, 0);
    make_nvme_state_store(*device_, none, chunks, options_);
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot reserve"));
    EXPECT_THAT(error.what(), HasSubstr("iB are free"));
  }
}

// Counts the blocks that are read.
class CountingIo final : public BlockIo {
 public:
  CountingIo(std::unique_ptr<BlockIo> inner, std::atomic<int>& reads)
      : inner_(std::move(inner)), reads_(reads) {}
  void transfer(Direction direction, std::span<const Block> blocks, const Visit& visit) override {
    if (direction == Direction::read) reads_ += static_cast<int>(blocks.size());
    inner_->transfer(direction, blocks, visit);
  }
  std::string_view name() const override { return "counting"; }

 private:
  std::unique_ptr<BlockIo> inner_;
  std::atomic<int>& reads_;
};

TEST_P(NvmeStateStoreTest, WhatIsExpectedIsReadOnceBeforeItIsAcquiredAndNeverStale) {
  std::atomic<int> reads = 0;
  const std::vector<StateLayout> chunks(4, {1000, {{"master", DType::fp32}}});
  const auto store = make(chunks, [&](const OpenFile& file, auto) {
    return std::make_unique<CountingIo>(make_thread_io(file, 2), reads);
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
  const TensorView changed = store->acquire(0, *stream_)[0];
  stream_->synchronize();
  EXPECT_EQ(changed.as<float>()[0], 7.0F);
  store->release(0, *stream_, 0);
}

TEST_P(NvmeStateStoreTest, OnlyWhatIsAskedForIsReadAndOnce) {
  std::atomic<int> reads = 0;
  const std::vector<StateLayout> chunks(4, {1000, {{"master", DType::fp32}}});
  const auto store = make(chunks, [&](const OpenFile& file, auto) {
    return std::make_unique<CountingIo>(make_thread_io(file, 2), reads);
  });
  for (int chunk = 0; chunk < 4; ++chunk) write(*store, chunk, 100.0F * static_cast<float>(chunk));
  reads = 0;
  EXPECT_EQ(store->stored(2)[0].as<float>()[1], 201.0F);
  store->accept_changes();
  EXPECT_EQ(store->stored(2)[0].as<float>()[2], 202.0F);
  EXPECT_EQ(reads, 1);
}

// Changes the file's first element behind the store's back.
void damage(int fd) {
  const int buffered = open_buffered(fd);
  const float damaged = 9.0F;
  EXPECT_EQ(::pwrite(buffered, &damaged, sizeof damaged, 0), sizeof damaged);
  EXPECT_EQ(::fdatasync(buffered), 0);
  ::close(buffered);
}

TEST_P(NvmeStateStoreTest, WhatWasAcceptedIsCheckedAsWhatWasReleased) {
  int fd = -1;
  const auto store = make_with_file(fd);
  write(*store, 0, 5.0F);
  store->stored(0)[0].as<float>()[0] = 8.0F;
  store->accept_changes();
  damage(fd);
  store->acquire(0, *stream_);
  EXPECT_THROW(stream_->synchronize(), IoError);
}

TEST_P(NvmeStateStoreTest, WhatWasOnlyLookedAtBeforeAStepIsNotAcceptedAfterIt) {
  int fd = -1;
  const auto store = make_with_file(fd);
  write(*store, 0, 5.0F);
  store->stored(0);
  write(*store, 0, 6.0F);
  stream_->synchronize();
  store->stored(1);  // waits for what is being written
  damage(fd);
  store->accept_changes();
  store->acquire(0, *stream_);
  EXPECT_THROW(stream_->synchronize(), IoError);
}

INSTANTIATE_TEST_SUITE_P(Ways, NvmeStateStoreTest, ::testing::Values(Io::best, Io::threads),
                         [](const auto& way) {
                           return way.param == Io::best ? "Best" : "Threads";
                         });

}  // namespace
}  // namespace zerorun
