#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/loading/second_reads.h"
#include "checkpoint/loading/undo_log.h"
#include "tests/checkpoint/fake_engine.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/paths.h"
#include "zerorun/checkpoint.h"
#include "zerorun/error.h"

namespace zerorun::load_changes {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Record = CheckpointReader::Record;

class UndoLogTest : public ::testing::Test {
 protected:
  // Tensors of a device: zeros, and random bytes.
  UndoLogTest() : memory_(device_->allocate(2 * kNumel, MemoryCategory::parameters)) {
    for (size_t i = 0; i < kNumel; ++i) {
      memory_.data()[i] = std::byte{0};
      memory_.data()[kNumel + i] = std::byte(1 + i % 251);
    }
  }

  static constexpr size_t kNumel = 5'000'011;
  std::string bytes() const {
    return {reinterpret_cast<const char*>(memory_.data()), memory_.nbytes()};
  }
  int64_t held() const { return device_->memory_use(MemoryCategory::other).live_bytes; }
  bool overwrite(UndoLog& log, size_t begin, size_t nbytes) {
    return log.write(memory_.data() + begin, std::span(new_bytes_).first(nbytes));
  }

  const std::shared_ptr<Device> device_ = make_cpu_device();
  const Buffer memory_;
  const std::vector<std::byte> new_bytes_ = std::vector<std::byte>(kNumel, std::byte{255});
};

TEST_F(UndoLogTest, BringsBackEveryByte) {
  const std::string before = bytes();
  UndoLog log(*device_, uint64_t{1} << 30);
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(overwrite(log, 0, kNumel - 3));
    EXPECT_TRUE(overwrite(log, kNumel - 3, 7));  // zeros and others
    for (size_t i = kNumel + 4; i < 2 * kNumel; i += 1'000'003) {
      EXPECT_TRUE(overwrite(log, i, std::min<size_t>(1'000'003, 2 * kNumel - i)));
    }
    EXPECT_EQ(bytes(), std::string(2 * kNumel, '\xff'));
    log.undo();
    ASSERT_TRUE(bytes() == before);
    EXPECT_EQ(held(), 0);
  }
}

TEST_F(UndoLogTest, OnlyZerosNeedNoRoom) {
  UndoLog log(*device_, 1000);
  EXPECT_TRUE(overwrite(log, 0, kNumel));
  EXPECT_EQ(held(), 0);
  EXPECT_TRUE(overwrite(log, kNumel, 600));
  const std::string before = bytes();
  EXPECT_FALSE(overwrite(log, kNumel + 600, 600));
  EXPECT_TRUE(bytes() == before);
  EXPECT_TRUE(overwrite(log, kNumel + 600, 400));
  log.clear();
  EXPECT_EQ(held(), 0);
  log.undo();
  EXPECT_EQ(bytes().substr(0, kNumel + 1000), std::string(kNumel + 1000, '\xff'));
}

// On a disk, so that reads bypass the page cache.
class LargeCheckpoint : public ::testing::Test {
 protected:
  LargeCheckpoint() {
    fs::remove_all(folder_);
    model_.specs.push_back({"large", {5'000'011}, "m", 0, true, ""});  // 20 MB and more, odd
    save_checkpoint(*make_engine(1), *comm_, {folder_.string(), "t", ""});
  }
  ~LargeCheckpoint() override { fs::remove_all(folder_); }

  std::unique_ptr<testing::FakeEngine> make_engine(uint64_t seed) const {
    return std::make_unique<testing::FakeEngine>(model_, testing::random_cuts(model_, 1, 1)[0],
                                                 seed);
  }
  static std::vector<const Record*> in_order(const CheckpointReader& checkpoint) {
    std::vector<const Record*> records;
    for (const Record& record : checkpoint.records()) records.push_back(&record);
    std::sort(records.begin(), records.end(),
              [](const Record* a, const Record* b) { return a->offset < b->offset; });
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
  testing::FakeModel model_ = testing::small_model();
};

// The reference is the file as a whole.
TEST_F(LargeCheckpoint, BothReadsGiveTheBytesOfTheFile) {
  const std::string whole = testing::read_file(file());
  const CheckpointReader checkpoint(folder_ / "t");
  const std::vector<const Record*> records = in_order(checkpoint);
  Workers workers(3);
  for (const ReadPath path : {ReadPath::direct, ReadPath::cached}) {
    std::string first(whole.size(), '\0');
    RunReader(checkpoint, *device_, workers, path)
        .read(runs_of(records),
              {.use = [&](const Record& record, uint64_t offset, std::span<const std::byte> bytes) {
                std::memcpy(first.data() + record.offset + offset, bytes.data(), bytes.size());
              }});
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

TEST_F(LargeCheckpoint, OfSeveralDamagedRecordsTheFirstIsToldAndAllIsUndone) {
  const std::vector<Record> records = [&] {
    const CheckpointReader checkpoint(folder_ / "t");
    std::vector<Record> copies;
    for (const Record* record : in_order(checkpoint)) copies.push_back(*record);
    return copies;
  }();
  const auto flip = [&] {
    std::string bytes = testing::read_file(file());
    for (const size_t i : {records.size() / 2, records.size() - 1}) {
      bytes[records[i].offset + records[i].nbytes() - 1] ^= 1;
    }
    testing::write_file(file(), bytes);
  };
  const auto engine = make_engine(2);
  const std::string before = engine->bytes();
  flip();
  const std::string first = CheckpointReader(folder_ / "t").describe(records[records.size() / 2]);
  EXPECT_THAT([&] { load_checkpoint(*engine, *comm_, folder_.string()); },
              ::testing::ThrowsMessage<CheckpointError>(HasSubstr("damaged: " + first)));
  EXPECT_TRUE(engine->bytes() == before);
  EXPECT_EQ(engine->refreshed(), 0);
  flip();
  load_checkpoint(*engine, *comm_, folder_.string());
  EXPECT_TRUE(engine->bytes() == make_engine(1)->bytes());
}

}  // namespace
}  // namespace zerorun::load_changes
