#include "checkpoint/loading/staged_records.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/checkpoint/fake_engine.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/paths.h"
#include "zerorun/checkpoint.h"
#include "zerorun/error.h"

namespace zerorun::staged_records {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Record = CheckpointReader::Record;
using std::chrono::nanoseconds;

constexpr uint64_t kEnough = uint64_t{1} << 30;

// On a disk: what is in memory is read through no cache.
class StagedRecordsTest : public ::testing::Test {
 protected:
  StagedRecordsTest() {
    fs::remove_all(folder_);
    testing::FakeModel model = testing::small_model();
    model.specs.push_back({"large", {5'000'011}, "m", 0, true, ""});  // 20 MB and more, odd
    testing::FakeEngine engine(model, testing::random_cuts(model, 1, 1)[0], 1);
    save_checkpoint(engine, *comm_, {folder_.string(), "t", ""});
  }
  ~StagedRecordsTest() override { fs::remove_all(folder_); }

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
      fs::path(test_paths::build()) / fmt::format("staged_records-{}", ::getpid());
  const std::shared_ptr<Communicator> comm_ = make_communicator({});
  const std::shared_ptr<Device> device_ = make_cpu_device();
  Workers workers_{3};
};

// The reference is the file as a whole.
TEST_F(StagedRecordsTest, BytesAreThoseOfTheFileWhereverTheyWaited) {
  const std::string whole = testing::read_file(file());
  const CheckpointReader checkpoint(folder_ / "t");
  const std::vector<const Record*> records = in_order(checkpoint);
  const std::vector<const Record*> none;
  struct Case {
    uint64_t room;
    nanoseconds patience;
    bool passing;
  };
  for (const Case& each : {Case{kEnough, nanoseconds::max() / 2, false}, Case{0, {}, false},
                           Case{uint64_t{20} << 20, nanoseconds::max() / 2, false},
                           Case{kEnough, nanoseconds(-1), false}, Case{kEnough, {}, true}}) {
    for (const ReadPath path : {ReadPath::direct, ReadPath::cached}) {
      StagedRecords staged(checkpoint);
      staged.read(each.passing ? none : records, each.passing ? records : none,
                  {*device_, each.room, each.patience}, path, workers_);
      for (const Record* record : records) {
        const StagedRecords::Source source = staged.source(*record);
        for (uint64_t at = 0; at < record->nbytes(); at += 1'234'567) {
          std::string bytes(std::min<uint64_t>(1'234'567, record->nbytes() - at), '\0');
          source(at, std::as_writable_bytes(std::span(bytes)));
          ASSERT_TRUE(bytes == whole.substr(record->offset + at, bytes.size()))
              << checkpoint.describe(*record) << " at " << at;
        }
      }
    }
  }
}

TEST_F(StagedRecordsTest, MemoryIsTakenForWhatIsKeptAlone) {
  const CheckpointReader checkpoint(folder_ / "t");
  const std::vector<const Record*> records = in_order(checkpoint);
  const auto held = [&] { return device_->memory_use(MemoryCategory::other).live_bytes; };
  StagedRecords staged(checkpoint);
  staged.read(records, {}, {*device_, kEnough, nanoseconds::max() / 2}, ReadPath::direct, workers_);
  EXPECT_GT(held(), 60'000'000);
  staged.clear();
  EXPECT_EQ(held(), 0);
  staged.read({}, records, {*device_, kEnough}, ReadPath::direct, workers_);
  EXPECT_EQ(held(), 0);
  staged.read(records, {}, {*device_, kEnough, nanoseconds(-1)}, ReadPath::direct, workers_);
  EXPECT_EQ(held(), 0);
}

TEST_F(StagedRecordsTest, OfSeveralDamagedRecordsTheFirstIsTold) {
  const CheckpointReader checkpoint(folder_ / "t");
  const std::vector<const Record*> records = in_order(checkpoint);
  std::string bytes = testing::read_file(file());
  for (const size_t i : {records.size() / 2, records.size() - 1}) bytes[records[i]->offset] ^= 1;
  testing::write_file(file(), bytes);
  for (const uint64_t room : {kEnough, uint64_t{0}}) {
    StagedRecords staged(checkpoint);
    EXPECT_THAT(
        [&] {
          staged.read(records, {}, {*device_, room}, ReadPath::direct, workers_);
        },
        ::testing::ThrowsMessage<CheckpointError>(
            HasSubstr("damaged: " + checkpoint.describe(*records[records.size() / 2]))));
  }
}

}  // namespace
}  // namespace zerorun::staged_records
