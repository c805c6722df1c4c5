#include "tests/checkpoint/sharded.h"
#include "tests/common.h"
#include "tests/paths.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;

// The model and file of data/make_safetensors.py.
FakeModel exported_model() {
  FakeModel model;
  model.specs = {{"wte", {3, 5}, "m", 0, true, ""},   {"ln", {7}, "m", 0, true, ""},
                 {"frozen", {11}, "m", 0, false, ""}, {"empty", {0, 4}, "m", 0, true, ""},
                 {"scale", {}, "m", 0, true, ""},     {"head", {3, 5}, "m", 0, true, "wte"}};
  return model;
}

std::vector<ExportTensor> exported_tensors() {
  return {{"transformer.wte.weight", "wte", {3, 5}},
          {"lm_head.weight", "head", {3, 5}},
          {"transformer.h.0.ln.weight", "ln", {7}},
          {"frozen", "frozen", {11}},
          {"empty", "empty", {0, 4}},
          {"scale", "scale", {}}};
}

// Element i of parameter p is 10 (p + 1) + i / 2.
void fill_ramps(FakeEngine& engine) {
  for (const StateInterval& interval : engine.state_intervals()) {
    for (int64_t i = 0; i < interval.numel; ++i) {
      const float start = 10.0F * static_cast<float>(interval.parameter + 1);
      interval.param.as<Bf16>()[i] = to_bf16(start + 0.5F * static_cast<float>(interval.begin + i));
    }
  }
}

class Export : public ::testing::Test {
 protected:
  void run(int world_size, const fs::path& path, const std::vector<ExportTensor>& tensors,
           const std::string& metadata = "{}") {
    const Sharded sharded = {model_, random_cuts(model_, world_size, 5)};
    sharded.run(1, [&](FakeEngine& engine, Communicator& comm) {
      fill_ramps(engine);
      export_safetensors(engine, comm, path.string(), tensors, metadata);
    });
  }

  FakeModel model_ = exported_model();
  TemporaryDirectory directory_;
  const fs::path path_ = directory_.path() / "model.safetensors";
};

TEST_F(Export, IsByteForByteWhatTheReferenceImplementationWrites) {
  const std::string expected =
      read_file(test_paths::tests() + "/checkpoint/data/exported.safetensors");
  ASSERT_FALSE(expected.empty());
  for (const int world_size : {1, 2, 4}) {
    run(world_size, path_, exported_tensors());
    EXPECT_EQ(read_file(path_), expected) << world_size << " ranks";
    EXPECT_THAT(names_in(directory_.path()), ElementsAre("model.safetensors"));
  }
}

TEST_F(Export, OwnReaderReadsIt) {
  run(2, path_, {{"b", "ln", {7, 1}}, {"a", "head", {15}}}, "{\"note\": \"x\"}");
  const SafetensorsReader reader(path_.string());
  ASSERT_EQ(reader.tensors().size(), 2U);
  EXPECT_THAT(reader.find("b")->shape, ElementsAre(7, 1));
  ASSERT_EQ(reader.find("a")->data.numel, 15);
  EXPECT_EQ(to_float(reader.find("a")->data.as<Bf16>()[14]), 17.0F);
  EXPECT_THAT(read_file(path_), HasSubstr("\"__metadata__\":{\"format\":\"pt\",\"note\":\"x\"}"));
}

TEST_F(Export, ReplacesTheFileAndCleansUpAfterACrash) {
  write_file(path_, "old");
  write_file(directory_.path() / ".model.safetensors.tmp-0123456789abcdef", "crashed");
  write_file(directory_.path() / ".other.tmp-0123456789abcdef", "not ours");
  run(1, path_, exported_tensors());
  EXPECT_GT(read_file(path_).size(), 100U);
  EXPECT_THAT(names_in(directory_.path()),
              ElementsAre(".other.tmp-0123456789abcdef", "model.safetensors"));
}

TEST_F(Export, FollowsLinksAndKeepsPermissions) {
  fs::create_directory(directory_.path() / "models");
  const fs::path target = directory_.path() / "models" / "current";
  write_file(target, "old");
  fs::permissions(target, fs::perms::owner_all);
  fs::create_symlink("models/current", path_);
  run(2, path_, exported_tensors());
  EXPECT_TRUE(fs::is_symlink(path_));
  EXPECT_EQ(SafetensorsReader(target.string()).tensors().size(), exported_tensors().size());
  EXPECT_EQ(fs::status(target).permissions(), fs::perms::owner_all);
  EXPECT_THAT(names_in(target.parent_path()), ElementsAre("current"));
}

TEST_F(Export, BadRequestsAreConfigErrorsThatLeaveNothing) {
  for (const auto& tensors :
       std::vector<std::vector<ExportTensor>>{{{"a", "ln", {8}}},
                                              {{"a", "ln", {-7, -1}}},
                                              {{"a", "missing", {7}}},
                                              {{"a", "ln", {7}}, {"a", "frozen", {11}}},
                                              {{"__metadata__", "ln", {7}}},
                                              {{"\xff", "ln", {7}}}}) {
    EXPECT_THROW(run(2, path_, tensors), ConfigError) << tensors[0].name;
  }
  for (const char* metadata : {"", "[]", "{\"a\": 1}", "{", "\"text\""}) {
    EXPECT_THROW(run(2, path_, exported_tensors(), metadata), ConfigError) << metadata;
  }
  EXPECT_TRUE(names_in(directory_.path()).empty());
}

TEST_F(Export, WhatIsNoRegularFileIsNeverReplaced) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THROW(run(2, path_, exported_tensors()), IoError);
  EXPECT_TRUE(fs::is_fifo(path_));
  const fs::path file = directory_.path() / "file";
  write_file(file, "mine");
  EXPECT_THROW(run(2, file / "model", exported_tensors()), IoError);
  EXPECT_THROW(run(2, directory_.path(), exported_tensors()), IoError);
  EXPECT_THAT(names_in(directory_.path()), ElementsAre("file", "model.safetensors"));
}

}  // namespace
}  // namespace zerorun
