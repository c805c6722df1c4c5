#include "checkpoint/files/file.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/shard_file.h"
#include "checkpoint/loading/checkpoint_reader.h"
#include "tests/checkpoint/fake_engine.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;

// A checkpoint of two ranks, small enough to damage every byte of it.
struct Damage : ::testing::Test {
  Damage() {
    model_.specs = {{"weight", {3, 5}, "m", 0, true, ""},
                    {"frozen", {3}, "m", 0, false, ""},
                    {"tied", {3, 5}, "m", 0, true, "weight"}};
    model_.states = {{"exp_avg"}};
    model_.groups.resize(1);
    Sharded{model_, {{{0, 0, 6}, {1, 0, 3}}, {{0, 6, 9}}}}.save({directory_.string(), "t", ""});
    for (const std::string& name : names_in(folder())) {
      (name == "checkpoint.json" ? manifest_ : shards_.emplace_back()) = folder() / name;
    }
  }

  fs::path folder() const { return directory_.path() / "t"; }

  FakeEngine make_engine(uint64_t seed) const {
    return {model_, std::vector<Cut>{{0, 0, 15}, {1, 0, 3}}, seed};
  }

  // The error of loading, or "loaded". Fails the test when the engine has neither the state that
  // was saved nor, after an error, the one it had.
  std::string load() {
    FakeEngine engine = make_engine(2);
    const std::string before = engine.bytes();
    try {
      load_checkpoint(engine, *comm_, directory_.string());
    } catch (const CheckpointError& error) {
      EXPECT_EQ(engine.bytes(), before) << error.what();
      EXPECT_EQ(engine.refreshed(), 0);
      return error.what();
    }
    EXPECT_EQ(engine.bytes(), make_engine(1).bytes());
    return "loaded";
  }

  void edit_manifest(const std::function<void(Manifest&)>& edit) {
    Manifest manifest = decode_manifest(read_file(manifest_), "manifest");
    edit(manifest);
    write_file(manifest_, encode_manifest(manifest));
  }
  // Loads with another text in the manifest, and the hash that belongs to it.
  std::string load_forged(const std::string& from, const std::string& to) {
    const std::string good = read_file(manifest_);
    std::string body = good.substr(0, good.find(",\n  \"xxh3\""));
    const size_t place = body.find(from);
    EXPECT_NE(place, body.npos) << from;
    body.replace(place, from.size(), to);
    write_file(manifest_, body + ",\n  \"xxh3\": \"" + to_hex(hash_of(body)) + "\"\n}\n");
    const std::string result = load();
    write_file(manifest_, good);
    return result;
  }
  // Rewrites the table of a file and makes the manifest agree with it.
  void edit_tensors(size_t shard, const std::function<void(std::vector<HashedTensor>&)>& edit) {
    const std::string bytes = read_file(shards_[shard]);
    edit_manifest([&](Manifest& manifest) {
      Manifest::ShardFile& entry = manifest.shards[shard];
      std::vector<HashedTensor> tensors =
          decode_hashed_header(bytes.substr(0, entry.header_nbytes), bytes.size(), "shard");
      edit(tensors);
      const std::string header = encode_hashed_header(tensors);
      write_file(shards_[shard], header + bytes.substr(entry.header_nbytes));
      entry.nbytes += header.size() - entry.header_nbytes;
      entry.header_nbytes = header.size();
      entry.header_hash = hash_of(header);
    });
  }

  std::string verify_error(const std::string& directory) {
    lines_.clear();
    const auto report = [&](const std::string& line) { lines_.push_back(line); };
    return error_of<CheckpointError>([&] { verify_checkpoint(directory, report); });
  }

  FakeModel model_;
  TemporaryDirectory directory_;
  std::vector<std::string> lines_;  // that verify_checkpoint reported
  fs::path manifest_;
  std::vector<fs::path> shards_;
  std::shared_ptr<Communicator> comm_ = make_communicator({});
};

TEST_F(Damage, NoChangedByteGoesUnnoticed) {
  for (const fs::path& path : {manifest_, shards_[0], shards_[1]}) {
    const std::string good = read_file(path);
    // The spaces that fill up a header are alike.
    const size_t padding = good.find(std::string(64, ' '));
    for (size_t i = 0; i < good.size(); ++i) {
      if (i > padding && good[i] == ' ' && good[i - 1] == ' ' && i % 61 != 0) continue;
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << i % 8));
      write_file(path, bad);
      EXPECT_THAT(load(), HasSubstr(path.filename().string())) << i;
    }
    write_file(path, good);
  }
  EXPECT_EQ(load(), "loaded");
}

TEST_F(Damage, NoMissingEndGoesUnnoticed) {
  for (const fs::path& path : {manifest_, shards_[0], shards_[1]}) {
    const std::string good = read_file(path);
    for (size_t length = 0; length < good.size(); length += 7) {
      write_file(path, good.substr(0, length));
      EXPECT_THAT(load(), HasSubstr(path.filename().string())) << length;
    }
    write_file(path, good + '\0');
    EXPECT_THAT(load(), HasSubstr(path.filename().string()));
    write_file(path, good);
  }
}

TEST_F(Damage, NamesFileOffsetAndParameter) {
  const size_t header = decode_manifest(read_file(manifest_), "").shards[1].header_nbytes;
  std::string bytes = read_file(shards_[1]);
  bytes[header] ^= 1;
  write_file(shards_[1], bytes);
  EXPECT_THAT(load(), HasAll(shards_[1].string(), fmt::format("offset {}", header),
                             "elements [6, 15) of weight (master)"));
}

TEST_F(Damage, AMissingFileIsNamedAndALinkThatLeadsNowhereIsNone) {
  fs::remove(shards_[1]);
  EXPECT_THAT(load(), HasSubstr(shards_[1].string() + " is missing"));
  for (const fs::path& target : {shards_[1], fs::path("nowhere")}) {
    fs::remove(shards_[1]);
    fs::create_symlink(target, shards_[1]);
    FakeEngine engine = make_engine(2);
    const std::string before = engine.bytes();
    EXPECT_ERROR_OF(IoError, load_checkpoint(engine, *comm_, directory_.string()),
                    "cannot open " + shards_[1].string());
    EXPECT_EQ(engine.bytes(), before);
  }
}

TEST_F(Damage, WhatDoesNotFitIsNamed) {
  const auto rename = [this](size_t shard, size_t tensor, const char* name) {
    return [=, this] { edit_tensors(shard, [&](auto& tensors) { tensors[tensor].name = name; }); };
  };
  const auto change = [this](auto edit) {
    return [=, this] { edit_manifest([&](Manifest& m) { edit(m.parameters[1]); }); };
  };
  std::vector<std::pair<std::function<void()>, const char*>> cases = {
      {rename(1, 0, "weight.master[7:16]"), "elements [7, 16) of weight (master)"},
      {rename(1, 1, "weight.exp_avg[5:14]"), "elements [5, 14) of weight (exp_avg)"},
      {rename(0, 0, "other.master[0:6]"), "tensor of 'other' (master)"},
      {rename(0, 0, "weight.master[0:288230376151711744]"), "has 24 bytes of F32"},
      {change([](auto& frozen) { frozen.shape = {4}; }),
       "hold 3 elements of frozen (param); expected 4"},
      {change([](auto& frozen) { frozen.dtype = DType::fp16; }),
       "frozen (param) in bf16: expected fp16"}};
  for (const char* name : {"weight", "weight.master", "weight.master[0:6", "weight.master[06:6]",
                           "weight.master[-1:6]", "weight.master[6:0]", "weight.master[0:]",
                           "weight.master[0:9223372036854775808]", "[0:6]"}) {
    cases.emplace_back(rename(0, 0, name), "does not name elements");
  }
  const TemporaryDirectory good;
  fs::copy(folder(), good.path() / "t");
  for (const auto& [damage, error] : cases) {
    damage();
    EXPECT_THAT(load(), HasSubstr(error));
    fs::copy(good.path() / "t", folder(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
}

TEST_F(Damage, ForgedManifestsAreRefused) {
  for (const auto& [from, to, error] : std::vector<std::array<const char*, 3>>{
           {"\"group\": 0", "\"group\": 99", "'group' is 99, but there are 1 groups"},
           {"\"lr\": ", "\"lr\": -1", "'lr' is -1"},
           {"\"step\": 0", "\"step\": 0,\n  \"step\": 7", "'step' stands twice"},
           {"\"step\": 0",
            "\"step\": 0,\n  \"loss_scaler\": {\"cur_scale\": -2, \"cur_iter\": 1, "
            "\"last_overflow_iter\": 0, \"cur_hysteresis\": 1}",
            "loss scaler state: scale -2"},
           {"\"name\": \"exp_avg\"", "\"name\": \"exp.avg\"", "has a '.'"},
           {"\"name\": \"rank00000-", "\"name\": \"../rank00000-", "' is not a file name"},
           {"\"version\": 4", "\"version\": 3", "only: load it with the zerorun that saved it"},
           {"\"version\": 4", "\"version\": 7", "format version 7"},
           {"\"step\": 0", "\"step\": 0", "loaded"}}) {
    EXPECT_THAT(load_forged(from, to), HasSubstr(error));
  }
}

TEST_F(Damage, AChangedByteOfABufferIsFound) {
  const std::array<std::byte, 8> mean{};
  on_one_rank(model_).save(
      {.directory = directory_.string(), .tag = "b", .buffers = {{"mean", "F32", {2}, mean}}});
  ASSERT_THAT(SavedModel(directory_.string(), "b").buffers(), SizeIs(1));
  for (const std::string& name : names_in(directory_.path() / "b")) {
    if (name.starts_with("buffers-")) flip_last_bit(directory_.path() / "b" / name);
  }
  EXPECT_THAT(verify_error((directory_.path() / "b").string()), HasSubstr("of the buffer 'mean'"));
}

TEST_F(Damage, VerifyReportsEveryCheckpoint) {
  FakeEngine engine = make_engine(1);
  engine.set_progress({.step_count = 9});
  save_checkpoint(engine, *comm_, {directory_.string(), "good", ""});
  EXPECT_EQ(verify_error(directory_.string()), "");
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("/good: ok: step 9, 3 parameters of 18 elements"),
                                  HasSubstr("/t: ok: step 0"), "latest: good"));
  EXPECT_EQ(verify_error(folder().string()), "");
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("/t: ok")));

  flip_last_bit(shards_[0]);
  write_file(directory_.path() / "latest", "gone\n");
  EXPECT_THAT(verify_error(directory_.string()),
              HasAll(shards_[0].string(), "gone holds no checkpoint", Not(HasSubstr("ok"))));
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("/good: ok")));
}

}  // namespace
}  // namespace zerorun::testing
