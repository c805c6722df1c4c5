#include "checkpoint/loading/record_runs.h"
#include "checkpoint/loading/undo_log.h"
#include "tests/checkpoint/sharded.h"
#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/paths.h"

namespace zerorun::load_changes {
namespace {

namespace fs = std::filesystem;
using Record = CheckpointReader::Record;

class UndoLogTest : public ::testing::Test {
 protected:
  // Tensors of a device: zeros, and random bytes.
  UndoLogTest() : memory_(device_->allocate(2 * kNumel, MemoryCategory::parameters)) {
    std::memset(memory_.data(), 0, kNumel);
    std::byte* const others = memory_.data() + kNumel;  // which repeat after a prime number
    for (size_t i = 0; i < kPeriod; ++i) others[i] = std::byte(1 + i);
    for (size_t done = kPeriod; done < kNumel; done *= 2) {
      std::memcpy(others + done, others, std::min(done, kNumel - done));
    }
  }

  static constexpr size_t kNumel = 5'000'011;
  static constexpr size_t kPeriod = 251;
  std::string bytes() const {
    return {reinterpret_cast<const char*>(memory_.data()), memory_.nbytes()};
  }
  // Memory for old bytes, of which so many can be taken.
  UndoLog::Take room(size_t nbytes) {
    room_ = std::vector<std::byte>(nbytes);
    return [this, taken = size_t{0}](size_t wanted) mutable {
      if (taken + wanted > room_.size()) return std::span<std::byte>();
      return std::span(room_).subspan(std::exchange(taken, taken + wanted), wanted);
    };
  }
  bool overwrite(UndoLog& log, size_t begin, size_t nbytes) {
    return log.write(memory_.data() + begin, std::span(new_bytes_).first(nbytes));
  }

  const std::shared_ptr<Device> device_ = make_cpu_device();
  const Buffer memory_;
  std::vector<std::byte> room_;
  const std::vector<std::byte> new_bytes_ = std::vector<std::byte>(kNumel, std::byte{255});
};

TEST_F(UndoLogTest, BringsBackEveryByte) {
  const std::string before = bytes();
  UndoLog log(*device_, room(4 * kNumel));
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(overwrite(log, 0, kNumel - 3));
    EXPECT_TRUE(overwrite(log, kNumel - 3, 7));  // zeros and others
    for (size_t i = kNumel + 4; i < 2 * kNumel; i += 1'000'003) {
      EXPECT_TRUE(overwrite(log, i, std::min<size_t>(1'000'003, 2 * kNumel - i)));
    }
    EXPECT_EQ(bytes(), std::string(2 * kNumel, '\xff'));
    log.undo();
    ASSERT_TRUE(bytes() == before);
  }
}

TEST_F(UndoLogTest, OnlyZerosNeedNoRoom) {
  UndoLog log(*device_, room(1000));
  EXPECT_TRUE(overwrite(log, 0, kNumel));
  EXPECT_TRUE(overwrite(log, kNumel, 600));
  const std::string before = bytes();
  EXPECT_FALSE(overwrite(log, kNumel + 600, 600));
  EXPECT_TRUE(bytes() == before);
  EXPECT_TRUE(overwrite(log, kNumel + 600, 400));
}

TEST(SpareMemory, GivesAllThatItMayAndNoMore) {
  const std::shared_ptr<Device> device = make_cpu_device();
  constexpr size_t kLimit = size_t{100} << 20;
  constexpr size_t kPiece = size_t{1} << 20;
  {
    SpareMemory memory(*device, kLimit);
    for (size_t taken = 0; taken < kLimit;) {
      const std::span<std::byte> piece = memory.take(kPiece);
      if (piece.empty()) std::this_thread::yield();  // not yet there
      std::fill(piece.begin(), piece.end(), std::byte{1});
      taken += piece.size();
    }
    EXPECT_TRUE(memory.take(kPiece).empty());
    EXPECT_EQ(device->memory_use(MemoryCategory::other).live_bytes, kLimit);
  }
  EXPECT_EQ(device->memory_use(MemoryCategory::other).live_bytes, 0);
}

// On a disk, so that reads bypass the page cache. Tensors of 20 MB, which disks can read into place
// or, as their numbers of elements are odd, cannot.
class LargeCheckpoint : public ::testing::TestWithParam<bool> {
 protected:
  LargeCheckpoint() {
    fs::remove_all(folder_);
    const bool aligned = GetParam();
    const int64_t numel = aligned ? 5'000'192 : 5'000'011;
    model_.specs.insert(model_.specs.begin(), {"large", {numel}, "m", 0, true, ""});
    cuts_ = random_cuts(model_, 1, 1)[0];
    if (aligned) {
      std::erase_if(cuts_, [](const testing::Cut& cut) { return cut.parameter == 0; });
      cuts_.insert(cuts_.begin(), {0, 0, numel});
    }
    save_checkpoint(*make_engine(1), *comm_, {folder_.string(), "t", ""});
  }
  ~LargeCheckpoint() override { fs::remove_all(folder_); }

  std::unique_ptr<FakeEngine> make_engine(uint64_t seed) const {
    return std::make_unique<FakeEngine>(model_, cuts_, seed);
  }
  static std::vector<const Record*> in_order(const CheckpointReader& checkpoint) {
    std::vector<const Record*> records;
    for (const Record& record : checkpoint.records()) records.push_back(&record);
    sort_by_place(records);
    return records;
  }
  fs::path file() const {
    for (const auto& entry : fs::directory_iterator(folder_ / "t")) {
      if (entry.path().extension() == ".safetensors") return entry.path();
    }
    return {};
  }

  const fs::path folder_ =
      fs::path(test_paths::build()) / fmt::format("load_changes-{}", ::getpid());
  const std::shared_ptr<Communicator> comm_ = make_communicator({});
  const std::shared_ptr<Device> device_ = make_cpu_device();
  FakeModel model_ = testing::small_model();
  std::vector<testing::Cut> cuts_;
};
INSTANTIATE_TEST_SUITE_P(, LargeCheckpoint, ::testing::Bool(),
                         [](const auto& aligned) { return aligned.param ? "Aligned" : "Odd"; });

// The reference is the file as a whole.
TEST_P(LargeCheckpoint, BothReadsGiveTheBytesOfTheFile) {
  const std::string whole = read_file(file());
  const CheckpointReader checkpoint(folder_ / "t");
  const std::vector<const Record*> records = in_order(checkpoint);
  Workers workers(3);
  for (const ReadPath path : {ReadPath::direct, ReadPath::cached}) {
    const Buffer memory = device_->allocate(whole.size(), MemoryCategory::other);
    const auto place_of = [&](const Record& record, uint64_t offset) {
      return memory.data() + record.offset + offset;
    };
    std::atomic<size_t> in_place = 0;
    RunReader(checkpoint, *device_, workers, path)
        .read(runs_of(records),
              {.place =
                   [&](const Record& record, uint64_t offset, size_t nbytes) {
                     if (offset > record.nbytes() / 2) return static_cast<std::byte*>(nullptr);
                     in_place += nbytes;
                     return place_of(record, offset);
                   },
               .use =
                   [&](const Record& record, uint64_t offset, std::span<const std::byte> bytes) {
                     std::memcpy(place_of(record, offset), bytes.data(), bytes.size());
                   }});
    EXPECT_GT(in_place, whole.size() / 3);
    const std::string first(reinterpret_cast<const char*>(memory.data()), memory.nbytes());
    SecondReads second(checkpoint, *device_);
    second.use(path, true);
    for (const Record* record : records) {
      EXPECT_TRUE(first.substr(record->offset, record->nbytes()) ==
                  whole.substr(record->offset, record->nbytes()));
      const SecondReads::Source source = second.source(*record);
      for (uint64_t at = 0; at < record->nbytes(); at += 1'234'567) {
        std::string bytes(std::min<uint64_t>(1'234'567, record->nbytes() - at), '\0');
        source(at, std::as_writable_bytes(std::span(bytes)));
        ASSERT_TRUE(bytes == whole.substr(record->offset + at, bytes.size()))
            << checkpoint.describe(*record) << " at " << at;
      }
    }
    second.clear();
  }
}

TEST_P(LargeCheckpoint, OfSeveralDamagedRecordsTheFirstIsToldAndAllIsUndone) {
  std::string first;
  std::vector<uint64_t> damaged;  // bytes of the file
  {
    const CheckpointReader checkpoint(folder_ / "t");
    const std::vector<const Record*> records = in_order(checkpoint);
    first = checkpoint.describe(*records[records.size() / 2]);
    for (const Record* record : {records[records.size() / 2], records.back()}) {
      damaged.push_back(record->offset + record->nbytes() - 1);
    }
  }
  const auto flip = [&] {
    std::string bytes = read_file(file());
    for (const uint64_t at : damaged) bytes[at] ^= 1;
    write_file(file(), bytes);
  };
  const auto engine = make_engine(2);
  const std::string before = engine->bytes();
  flip();
  EXPECT_THAT(
      error_of<CheckpointError>([&] { load_checkpoint(*engine, *comm_, folder_.string()); }),
      HasSubstr("damaged: " + first));
  EXPECT_TRUE(engine->bytes() == before);
  EXPECT_EQ(engine->refreshed(), 0);
  flip();
  load_checkpoint(*engine, *comm_, folder_.string());
  EXPECT_TRUE(engine->bytes() == make_engine(1)->bytes());
}

TEST(WorkersTest, EveryItemIsDoneOnceAndTheErrorIsThatOfTheFirst) {
  Workers workers(4);
  for (int round = 0; round < 200; ++round) {
    const auto fail_some = [](size_t i) {
      if (i % 30 == 17) throw std::runtime_error(std::to_string(i));
    };
    EXPECT_EQ(error_of<std::runtime_error>([&] { workers.each(100, fail_some); }), "17");
  }
  for (const size_t count : {0U, 1U, 3U, 1000U}) {
    std::vector<std::atomic<int>> done(count);
    workers.each(count, [&](size_t i) { ++done[i]; });
    for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
  }
}

}  // namespace
}  // namespace zerorun::load_changes
