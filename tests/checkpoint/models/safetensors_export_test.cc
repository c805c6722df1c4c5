#include "tests/checkpoint/fake_engine.h"

namespace zerorun::testing {
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

struct Export : ::testing::Test {
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

namespace fs = std::filesystem;

std::string safetensors(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + data;
}

struct Reader : ::testing::Test {
  SafetensorsReader open(const std::string& bytes) {
    write_file(path_, bytes);
    return SafetensorsReader(path_.string());
  }
  // The error of reading the bytes; always a CheckpointError that names the file.
  std::string error_of(const std::string& bytes) {
    const std::string error = testing::error_of<CheckpointError>([&] { open(bytes); });
    EXPECT_TRUE(error.empty() || error.find(path_.string()) != error.npos) << error;
    return error;
  }

  TemporaryDirectory directory_;
  const fs::path path_ = directory_.path() / "x.safetensors";
  const fs::path golden_ = fs::path(test_paths::tests()) / "checkpoint/data/mixed.safetensors";
};

// The second tensor is not aligned, so its bytes are a copy that the file cannot replace.
TEST_F(Reader, WhatIsForgottenIsReadAgain) {
  const std::string header = R"({"a": {"dtype": "U8", "shape": [5], "data_offsets": [0, 5]},)"
                             R"( "b": {"dtype": "F32", "shape": [2], "data_offsets": [5, 13]}})";
  std::string data = "hello";
  const float values[] = {1.5F, -2.0F};
  data.append(reinterpret_cast<const char*>(values), sizeof values);
  const SafetensorsReader reader = open(safetensors(header, data));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(reader.find("a")->data.span<uint8_t>(), ElementsAre('h', 'e', 'l', 'l', 'o'));
    const TensorView unaligned = reader.find("b")->data;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(unaligned.data) % alignof(float), 0U);
    EXPECT_THAT(unaligned.span<float>(), ElementsAre(1.5F, -2.0F));
    for (const SafetensorsReader::Tensor& tensor : reader.tensors()) {
      reader.forget(tensor.data);
      reader.forget(tensor.data.slice(1, 1));
      reader.forget(tensor.data.slice(0, 0));
    }
  }
}

TEST_F(Reader, ReadsEveryDTypeOfTheReferenceImplementation) {
  const SafetensorsReader reader(golden_.string());
  EXPECT_EQ(reader.tensors().size(), 7U);
  const auto at = [&](const char* name) { return reader.find(name)->data; };
  EXPECT_THAT(at("fp32").span<float>(), ElementsAre(-1, -0.5, 0, 0.5, 1, 1.5));
  EXPECT_THAT(reader.find("fp32")->shape, ElementsAre(2, 3));
  EXPECT_EQ(to_float(at("bf16").as<Bf16>()[4]), 3.0F);
  EXPECT_EQ(to_float(at("fp16").as<Fp16>()[3]), 3.5F);
  EXPECT_THAT(at("int64").span<int64_t>(), ElementsAre(-1, int64_t{1} << 62));
  EXPECT_THAT(at("uint8").span<uint8_t>(), ElementsAre(0, 7, 255));
  EXPECT_TRUE(at("empty").empty());
  EXPECT_THAT(reader.find("empty")->shape, ElementsAre(0, 4));
  EXPECT_EQ(at("scalar").as<float>()[0], 3.0F);
  EXPECT_EQ(reader.find("absent"), nullptr);
  EXPECT_ERROR_OF(CheckpointError, reader.find("int32"), "tensor 'int32' is of dtype I32",
                  "offset ");
  EXPECT_THROW(SafetensorsReader((directory_.path() / "none").string()), IoError);
}

TEST_F(Reader, NamesWhatIsWrongAndWhere) {
  EXPECT_THAT(error_of(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8)),
              HasSubstr("offset 0: header of 9223372036854775807 bytes"));
  EXPECT_THAT(error_of(safetensors(std::string(100'000, '['))), HasSubstr("nested deeper"));
  const std::string good = read_file(golden_);
  EXPECT_THAT(error_of(good + '\0'), HasSubstr("cut short, or followed by something else"));
  EXPECT_THAT(error_of(good.substr(0, good.size() - 1)), HasSubstr("do not fit into"));
  for (const auto& [header, data, error] : std::vector<std::array<const char*, 3>>{
           {R"({"w": oops})", "", "not valid JSON at offset "},
           {"[]", "", "offset 8: expected a JSON object"},
           {R"({"w":{}})", "", "w: 'dtype' is missing"},
           {R"({"w":{"dtype":3,"shape":[],"data_offsets":[0,4]}})", "",
            "w: 'dtype' is 3; expected text"},
           {R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "",
            "'shape' is array; expected an array of sizes"},
           {R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "",
            "expected a size that memory can hold"},
           {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234",
            "data_offsets [0, 4] hold 4 bytes; its shape needs 8"},
           {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "",
            "data_offsets [0, 4] do not fit into 0 bytes of data at offset "},
           {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234", "do not fit"},
           {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
            R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
            "123", "'b' begins at offset "},
           {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
            R"("b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
            "12345", "'b' begins at offset "},
           {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},)"
            R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
            "1234", ""}}) {
    EXPECT_THAT(error_of(safetensors(header, data)), HasSubstr(error));
  }
}

struct ModelFolder : Reader {
  void add(const std::string& name, const std::string& tensor) {
    write_file(
        directory_.path() / name,
        safetensors("{\"" + tensor + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  }
  std::string folder_error() {
    return testing::error_of<CheckpointError>([&] { SafetensorsReader(directory_.string()); });
  }
};

TEST_F(ModelFolder, WithOneFileOrSeveral) {
  add("model.safetensors", "a");
  EXPECT_NE(SafetensorsReader(directory_.string()).find("a"), nullptr);
  fs::remove(directory_.path() / "model.safetensors");
  add("model-00001-of-00002.safetensors", "a");
  add("model-00002-of-00002.safetensors", "b");
  write_file(directory_.path() / "model.safetensors.index.json",
             R"({"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors",
                 "b": "model-00002-of-00002.safetensors"}})");
  const SafetensorsReader reader(directory_.string());
  EXPECT_EQ(reader.tensors().size(), 2U);
  EXPECT_NE(reader.find("b"), nullptr);

  fs::remove(directory_.path() / "model-00002-of-00002.safetensors");
  EXPECT_THAT(folder_error(), HasSubstr("model-00002-of-00002.safetensors is missing"));
  add("model-00002-of-00002.safetensors", "a");
  EXPECT_THAT(folder_error(), HasSubstr("tensor 'a' is in another file too"));
  add("model-00002-of-00002.safetensors", "c");
  EXPECT_THAT(folder_error(), HasSubstr("has no tensor 'b'"));
}

TEST_F(ModelFolder, WithoutSafetensorsOrASensibleIndexSaysWhatToDo) {
  EXPECT_THAT(folder_error(), HasSubstr("holds neither model.safetensors nor"));
  write_file(directory_.path() / "pytorch_model.bin", "");
  EXPECT_THAT(folder_error(), HasSubstr("safe_serialization=True"));
  for (const char* index : {"", "[]", "{}", R"({"weight_map": 1})", R"({"weight_map": {"a": 1}})",
                            R"({"weight_map": {"a": "../x"}})", R"({"weight_map": {"a": ""}})"}) {
    write_file(directory_.path() / "model.safetensors.index.json", index);
    EXPECT_THAT(folder_error(), HasSubstr("model.safetensors.index.json")) << index;
  }
}

}  // namespace
}  // namespace zerorun::testing
