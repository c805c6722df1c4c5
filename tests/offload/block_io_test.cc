#include "offload/block_io.h"

#include "core/format_bytes.h"
#include "offload/direct_file.h"
#include "tests/common.h"
#include "tests/refused_calls.h"
#include "zerorun/device.h"

namespace zerorun::testing {
namespace {

constexpr size_t kNbytes = size_t{1} << 20;

struct BlockIoTest : ::testing::TestWithParam<bool> {
  std::unique_ptr<BlockIo> make(int depth) {
    const std::vector<std::span<std::byte>> memory = {{buffer_.data(), kNbytes}};
    if (GetParam()) return make_uring_io(file_.open(), depth, memory);
    return make_thread_io(file_.open(), depth);
  }
  std::vector<Block> blocks(size_t block) {
    std::vector<Block> all;
    for (size_t at = 0; at < kNbytes; at += block) {
      all.push_back({buffer_.data() + at, std::min(block, kNbytes - at), at});
    }
    return all;
  }

  const std::shared_ptr<Device> device_ = make_cpu_device();
  const Buffer buffer_ = device_->allocate_pinned(kNbytes);
  DirectFile file_{test_paths::build(), "test", kNbytes};
};

TEST_P(BlockIoTest, ReadsWhatItWroteAndVisitsEveryBlockOnce) {
  for (const auto& [block, depth] :
       each(std::array{size_t{4096}, size_t{12288}, kNbytes}, std::array{1, 3, 64})) {
    const auto io = make(depth);
    if (!io) GTEST_SKIP() << "the kernel refuses io_uring";
    std::mt19937_64 random(block);
    std::vector<uint64_t> expected(kNbytes / 8);
    for (uint64_t& word : expected) word = random();
    std::copy_n(reinterpret_cast<const std::byte*>(expected.data()), kNbytes, buffer_.data());
    std::mutex mutex;
    std::vector<int> visits(blocks(block).size(), 0);
    const auto visit = [&](size_t i) {
      const std::lock_guard lock(mutex);
      ++visits[i];
    };
    io->transfer(Direction::write, blocks(block), visit);
    EXPECT_THAT(visits, ::testing::Each(1));
    std::fill_n(buffer_.data(), kNbytes, std::byte{0});
    io->transfer(Direction::read, blocks(block), visit);
    EXPECT_THAT(visits, ::testing::Each(2));
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                           reinterpret_cast<const uint64_t*>(buffer_.data())));
  }
}

TEST_P(BlockIoTest, ReadingBeyondTheEndNamesFileAndOffset) {
  const auto io = make(4);
  if (!io) GTEST_SKIP() << "the kernel refuses io_uring";
  std::vector<Block> all = blocks(4096);
  all[200].offset = 2 * kNbytes;
  EXPECT_ERROR_OF(IoError, io->transfer(Direction::read, all, [](size_t) {}),
                  "test: cannot read 4096 bytes at offset 2097152: the file "
                  "ends before");
  io->transfer(Direction::read, blocks(4096), [](size_t) {});  // it goes on
}

TEST_P(BlockIoTest, AnErrorOfTheVisitorEndsTheTransfer) {
  const auto io = make(4);
  if (!io) GTEST_SKIP() << "the kernel refuses io_uring";
  for (const Direction direction : {Direction::read, Direction::write}) {
    EXPECT_THROW(io->transfer(direction, blocks(4096),
                              [](size_t i) {
                                if (i == 100) throw IoError("damaged");
                              }),
                 IoError);
  }
  io->transfer(Direction::read, blocks(4096), [](size_t) {});
}

// The descriptor of a ring, replaced by a file that is none until this ends.
class BrokenRing {
 public:
  explicit BrokenRing(int ring) : ring_(ring), saved_(::dup(ring)) {
    const int other = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(other, ring_);
    ::close(other);
  }
  ~BrokenRing() {
    ::dup2(saved_, ring_);
    ::close(saved_);
  }

 private:
  int ring_;
  int saved_;
};

// -1: none is open.
int find_ring() {
  int found = -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    if (target.string().find("io_uring") == std::string::npos) continue;
    found = std::stoi(entry.path().filename().string());
  }
  return found;
}

TEST_P(BlockIoTest, AfterAFailedSubmissionNothingRunsAndTheNextTransferIsWhole) {
  if (!GetParam()) GTEST_SKIP() << "threads have no queue to break";
  for (const int depth : {1, 1, 8, 8}) {
    const auto io = make(depth);
    const int ring = io ? find_ring() : -1;
    if (ring < 0) GTEST_SKIP() << "the kernel refuses io_uring, or does not show it";
    std::fill_n(buffer_.data(), kNbytes, std::byte{1});
    io->transfer(Direction::write, blocks(4096), [](size_t) {});
    std::optional<BrokenRing> broken;
    // Blocks 0 to 4 are on their way when the ring breaks.
    EXPECT_THROW(io->transfer(Direction::write, blocks(4096),
                              [&](size_t i) {
                                std::fill_n(buffer_.data() + i * 4096, 4096, std::byte{2});
                                if (i == 5) broken.emplace(ring);
                              }),
                 IoError);
    broken.reset();
    std::fill_n(buffer_.data(), kNbytes, std::byte{3});  // nobody may write this for block 5
    io->transfer(Direction::read, blocks(4096), [](size_t) {});
    for (size_t i = 0; i < kNbytes; ++i) {
      const auto expected = i < size_t{5} * 4096 ? std::byte{2} : std::byte{1};
      ASSERT_EQ(buffer_.data()[i], expected) << i;
    }
  }
}

TEST(BlockIo, ThreadsMoveBlocksWhereTheKernelRefusesIoUring) {
  std::thread([] {  // what is refused to it is refused to no other test
    if (!refuse_calls({SYS_io_uring_setup}, EPERM, RefusedTo::this_thread)) {
      GTEST_SKIP() << "this system has no seccomp";
    }
    const DirectFile file(test_paths::build(), "test", kDirectAlignment);
    EXPECT_EQ(make_block_io(file.open(), {}, {})->name(), "threads");
  })
      .join();
}

INSTANTIATE_TEST_SUITE_P(Ways, BlockIoTest, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Uring" : "Threads"; });

uint64_t available() { return std::filesystem::space(test_paths::build()).available; }

std::string refusal(const std::string& folder, uint64_t nbytes, const FilePurpose& purpose = {}) {
  return error_of<ConfigError>([&] { const DirectFile file(folder, "test", nbytes, purpose); });
}

TEST(DirectFile, RefusesWhatTheDiskHasNoRoomForAndNamesTheSettingThatNamedTheFolder) {
  const uint64_t large = available() + (uint64_t{1} << 40);
  const std::string states = refusal(test_paths::build(), large);
  EXPECT_THAT(states, StartsWith("/zero_optimization/offload_optimizer/nvme_path " +
                                 test_paths::build() + ": cannot reserve "));
  EXPECT_THAT(states, HasAll("for this rank's offloaded states: ",
                             "are free. Free some, name another disk, or offload a smaller"));
  const FilePurpose bench{.folder = "bench:", .content = "a file", .instead = "do less"};
  EXPECT_THAT(refusal("/no/such", 1, bench), StartsWith("bench: /no/such: No such file"));
  const std::string other = refusal(test_paths::build(), large, bench);
  EXPECT_THAT(other, HasAll("cannot reserve " + format_bytes(large) + " for a file",
                            "name another disk, or do less"));
}

TEST(DirectFile, RoomForHalfOfTheFilesOfAHostIsNotRoomForAll) {
  const auto error = [](const std::vector<FileRequest>& files, int ranks) {
    return error_of<ConfigError>([&] { check_room(files, ranks); });
  };
  const uint64_t half = available() / 2 + (uint64_t{1} << 30);
  const FileRequest states{test_paths::build(), half, {}};
  const FileRequest parameters{test_paths::build() + "/.", half, {.folder = "/other"}};
  EXPECT_THAT(error({states}, 2),
              HasSubstr("the files of the 2 ranks of this host need " + format_bytes(2 * half)));
  EXPECT_THAT(error({states, parameters}, 1),
              HasSubstr("the files of the rank of this host need " + format_bytes(2 * half)));
  EXPECT_EQ(error({states, {"", 0, {}}}, 1), "");
  EXPECT_EQ(error({{test_paths::build(), uint64_t{1} << 20, {}}}, 2), "");
}

}  // namespace
}  // namespace zerorun::testing
