#include "checkpoint/loading/record_runs.h"
#include "checkpoint/loading/undo_log.h"
#include "tests/checkpoint/fake_engine.h"

namespace zerorun::testing::load_changes {
namespace {

namespace fs = std::filesystem;
using Record = CheckpointReader::Record;

struct UndoLogTest : ::testing::Test {
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
struct LargeCheckpoint : ::testing::TestWithParam<bool> {
  LargeCheckpoint() {
    fs::remove_all(folder_);
    const bool aligned = GetParam();
    const int64_t numel = aligned ? 5'000'192 : 5'000'011;
    model_.specs.insert(model_.specs.begin(), {"large", {numel}, "m", 0, true, ""});
    cuts_ = random_cuts(model_, 1, 1)[0];
    if (aligned) {
      std::erase_if(cuts_, [](const Cut& cut) { return cut.parameter == 0; });
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
  FakeModel model_ = small_model();
  std::vector<Cut> cuts_;
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
  EXPECT_ERROR_OF(CheckpointError, load_checkpoint(*engine, *comm_, folder_.string()),
                  "damaged: " + first);
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

// Saves one model, loads into another that `change` made of it, and returns the error.
std::string load_error(const std::function<void(FakeModel&)>& change) {
  const TemporaryDirectory directory;
  Sharded sharded = on_one_rank();
  sharded.save({.directory = directory.string()});
  change(sharded.model);
  std::string result = "loaded";
  on_one_rank(sharded.model).run(2, [&](FakeEngine& engine, Communicator& comm) {
    const std::string before = engine.bytes();
    try {
      load_checkpoint(engine, comm, directory.string());
    } catch (const CheckpointError& error) {
      EXPECT_EQ(engine.bytes(), before);
      result = error.what();
    }
  });
  return result;
}

TEST(ModelMatch, DifferencesAreNamed) {
  const std::vector<std::pair<std::function<void(FakeModel&)>, const char*>> cases = {
      {[](FakeModel& model) { std::swap(model.specs[1], model.specs[3]); }, "loaded"},
      {[](FakeModel& model) {
         model.specs[2].shape = {5, 3, 7};
       },
       "step0 does not fit this model (7 parameters; this model has 7): "
       "h.0.mlp.weight has shape [7,3,5], in this model [5,3,7]"},
      {[](FakeModel& model) {
         model.specs.push_back({"h.1.mlp.weight", {2}, "h.1", 0, true, ""});
       },
       "(7 parameters; this model has 8): it has no parameter h.1.mlp.weight, which this model "
       "has"},
      {[](FakeModel& model) { model.specs.erase(model.specs.begin() + 5); },
       "has the parameter scale, which this model lacks"},
      {[](FakeModel& model) { model.dtype = DType::fp32; },
       "wte.weight is in bf16, in this model in fp32"},
      {[](FakeModel& model) { model.specs[3].trainable = true; },
       "h.0.frozen is frozen, in this model trainable"},
      {[](FakeModel& model) { model.specs.back().alias_of.clear(); },
       "lm_head.weight is tied to wte.weight, in this model untied"},
      {[](FakeModel& model) { model.states = {{"momentum_buffer"}}; },
       "optimizer states of wte.weight are [master fp32, exp_avg fp32, exp_avg_sq fp32], this "
       "optimizer's are [master fp32, momentum_buffer fp32]"},
      {[](FakeModel& model) {
         model.master_dtype = DType::bf16;
         model.states = {{"exp_avg", DType::uint8},
                         {"exp_avg_scale", DType::fp32, 256},
                         {"exp_avg_sq", DType::bf16}};
       },
       "this optimizer's are [master bf16, exp_avg uint8, exp_avg_scale fp32/256, "
       "exp_avg_sq bf16]"},
      {[](FakeModel& model) {
         for (int i = 0; i < 100; ++i) {
           model.specs.push_back({"extra." + std::to_string(i), {2}, "m", 0, true, ""});
         }
       },
       "\n  and 80 more"},
      {[](FakeModel& model) { model.groups.pop_back(); }, "has 2 parameter groups, this run 1"}};
  for (const auto& [change, error] : cases) EXPECT_THAT(load_error(change), HasSubstr(error));
}

TEST(ModelMatch, AllDifferencesComeAtOnceWithTheNearestNames) {
  EXPECT_THAT(load_error([](FakeModel& model) {
                model.specs[1].name = "h.0.ln.wieght";
                model.specs[2].shape = {5, 3, 7};
                model.specs[3].trainable = true;
                model.specs[5].name = "module.scale";
              }),
              HasAll("h.0.mlp.weight has shape", "h.0.frozen is frozen",
                     "no parameter h.0.ln.wieght, which this model has (nearest: h.0.ln.weight)",
                     "no parameter module.scale, which this model has (nearest: scale)",
                     "parameter h.0.ln.weight, which this model lacks (nearest: h.0.ln.wieght)",
                     "the parameter scale, which this model lacks (nearest: module.scale)"));
}

}  // namespace
}  // namespace zerorun::testing::load_changes
