#include "train/data/corpus.h"

#include "tests/train/token_file.h"
#include "train/data/batches.h"

namespace zerorun::train::testing {
namespace {

std::vector<int32_t> tokens_of(const Corpus& corpus, int64_t begin, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  corpus.read(begin, tokens);
  return tokens;
}

std::string error_from(const std::vector<std::string>& paths) {
  return error_of([&] { const Corpus corpus(paths); });
}

TEST(CorpusTest, WalksFoldersInTheOrderOfNamesAndSkipsWhatIsNotText) {
  const Scratch folder;
  folder.write("c/deep/2", "C");
  folder.write("c/deep/1", "\xff");
  folder.write("a", "A");
  folder.write("d", "Dd");
  folder.write("empty", "");
  folder.write(".git/config", "hidden");
  folder.write("image", std::string("\x89PNG\0\0", 6));
  const Corpus corpus({folder.path(), folder.write("other/z", "z"), folder.path("a")});
  EXPECT_EQ(corpus.size(), 8);
  EXPECT_EQ(corpus.file_count(), 7);
  EXPECT_EQ(corpus.vocabulary(), 256);
  EXPECT_THAT(tokens_of(corpus, 0, 8), ElementsAre('A', 255, 'C', 'D', 'd', 'z', 'z', 'A'));
  EXPECT_THAT(tokens_of(corpus, 1, 3), ElementsAre(255, 'C', 'D'));
}

TEST(CorpusTest, TheHashIsThatOfTheContent) {
  const Scratch folder;
  const uint64_t whole = Corpus({folder.write("whole", "abcdef")}).hash();
  EXPECT_EQ(Corpus({folder.write("x/1", "ab"), folder.write("x/2", "cdef")}).hash(), whole);
  EXPECT_NE(Corpus({folder.write("order", "abdcef")}).hash(), whole);
  EXPECT_NE(Corpus({folder.write("longer", "abcdefg")}).hash(), whole);
  EXPECT_NE(Corpus({folder.write("t.bin", token_file(9, {1, 2}))}).hash(),
            Corpus({folder.write("u.bin", token_file(9, {1, 3}))}).hash());
  constexpr int64_t kSize = (int64_t{64} << 20) + 1000;  // of which only a part is read
  const auto hash_with = [&](int64_t at, char byte) {
    const std::string path = folder.write("large", "");
    std::filesystem::resize_file(path, kSize);
    std::fstream(path, std::ios::in | std::ios::out).seekp(at).put(byte);
    return Corpus({path}).hash();
  };
  const uint64_t zeros = hash_with(0, 0);
  EXPECT_EQ(hash_with(kSize - 1, 0), zeros);
  EXPECT_NE(hash_with(0, 'x'), zeros);
  EXPECT_NE(hash_with(kSize - 1, 'x'), zeros);
}

TEST(CorpusTest, ReadsTokenFilesAndRefusesTokensOutsideTheVocabulary) {
  const Scratch folder;
  const Corpus corpus({folder.write("1.bin", token_file(50257, {7, 50256, 0})),
                       folder.write("2.bin", token_file(50257, {1, 50257}))});
  EXPECT_EQ(corpus.vocabulary(), 50257);
  EXPECT_FALSE(corpus.is_text());
  EXPECT_THAT(tokens_of(corpus, 1, 3), ElementsAre(50256, 0, 1));
  EXPECT_ERROR_OF(IoError, tokens_of(corpus, 1, 4), "2.bin: token 50257 at position 1");
}

TEST(CorpusTest, DamagedTokenFilesAreRefused) {
  const Scratch folder;
  const std::string good = token_file(10, {1, 2, 3});
  const auto with = [&](size_t at, char byte) {
    std::string content = good;
    content[at] = byte;
    return content;
  };
  for (const auto& [content, message] : std::vector<std::pair<std::string, const char*>>{
           {good, ""},
           {good.substr(0, good.size() - 1), "truncated"},
           {good + "zz", "the header says 3 tokens"},
           {with(23, '\x7f'), "truncated"},
           {with(8, '\2'), "version 2"},
           {with(12, '\0'), "vocabulary of 0"},
           {with(14, '\2'), "vocabulary of 131082"},
           {"", "header"},
           {good.substr(0, 31), "header"}}) {
    const std::string error = error_from({folder.write("x.bin", content)});
    EXPECT_EQ(error.empty(), content == good);
    EXPECT_THAT(error, HasSubstr(message));
  }
}

TEST(CorpusTest, NothingToReadAndMixturesAreErrorsThatNameThePaths) {
  const Scratch folder;
  EXPECT_THAT(error_from({}), HasSubstr("empty"));
  EXPECT_THAT(error_from({folder.path()}), HasAll("empty", folder.path().string()));
  EXPECT_THAT(error_from({folder.path("missing")}), HasSubstr("missing"));
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_from({folder.path("pipe")}), HasSubstr("expected a file or a folder"));
  const std::string text = folder.write("a.txt", "text");
  const std::string tokens = folder.write("b.bin", token_file(10, {1}));
  EXPECT_THAT(error_from({text, tokens}), HasAll("a.txt is text", "b.bin is tokens"));
  EXPECT_THAT(error_from({tokens, folder.write("c.bin", token_file(11, {1}))}),
              HasAll("b.bin has 10", "c.bin has 11"));
}

TEST(DefaultTextTest, PrefersAPythonLibraryInTheHomeFolderToNothing) {
  // The machine's files outside the home folder are not known here, only that something is found.
  const Scratch home;
  home.write(".pyenv/versions/3.9.1/lib/python3.9/os.py", "import sys");
  home.write(".pyenv/versions/3.9.1/lib/python3.9/site-packages/other.py", "other");
  const DefaultText text = find_default_text(home.path());
  EXPECT_FALSE(text.paths.empty());
  EXPECT_EQ(text.prompt, "\ndef ");
  for (const std::string& path : text.paths) {
    EXPECT_EQ(path.find("site-packages"), std::string::npos);
  }
}

TEST(DataOrderTest, EveryEpochIsAPermutation) {
  for (int64_t count : {1, 2, 3, 7, 64, 65, 1000, 4097}) {
    const DataOrder order(count, 5);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> seen;
      for (int64_t i = 0; i < count; ++i) seen.insert(order.sequence(epoch * count + i));
      EXPECT_EQ(std::ssize(seen), count);
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), count - 1);
    }
  }
}

TEST(DataOrderTest, NeighboursSeedsAndEpochsAreIndependent) {
  constexpr int64_t kCount = 10000;
  const DataOrder order(kCount, 1);
  double sum = 0.0;
  for (int64_t i = 0; i + 1 < kCount; ++i) {
    sum += std::abs(static_cast<double>(order.sequence(i) - order.sequence(i + 1)));
  }
  // Two independent uniform numbers in [0, n) lie n / 3 apart on average.
  EXPECT_NEAR(sum / kCount, kCount / 3.0, 0.02 * kCount);
  int same = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    same += order.sequence(i) == DataOrder(kCount, 2).sequence(i) ? 1 : 0;
    same += order.sequence(i) == order.sequence(i + kCount) ? 1 : 0;
  }
  EXPECT_LT(same, 20);  // of other seeds and epochs: about two
}

struct BatchesTest : ::testing::Test {
  // Token i has the value i % 251, so a token tells its position.
  Corpus corpus_of(int64_t size) const {
    std::string bytes;
    for (int64_t i = 0; i < size; ++i) bytes += static_cast<char>(i % 251);
    return Corpus({folder_.write("text", bytes)});
  }
  const Scratch folder_;
};

// The multiset of sequences that a step sees.
std::multiset<int32_t> starts_of_step(const Corpus& corpus, int64_t micro_batch,
                                      int64_t accumulation, int world_size, int64_t first_sample) {
  std::multiset<int32_t> starts;
  for (int rank = 0; rank < world_size; ++rank) {
    Batches batches(corpus,
                    {.micro_batch = micro_batch,
                     .accumulation_steps = accumulation,
                     .seq_len = 5,
                     .world_size = world_size,
                     .rank = rank},
                    1);
    for (int64_t micro_step = 0; micro_step < accumulation; ++micro_step) {
      const Batch batch = batches.training(first_sample, micro_step);
      for (size_t i = 0; i < batch.tokens.size(); ++i) {
        if (i % 5 == 0) starts.insert(batch.tokens[i]);
        EXPECT_EQ(batch.targets[i], (batch.tokens[i] + 1) % 251);
      }
    }
  }
  return starts;
}

TEST_F(BatchesTest, AStepSeesTheSameSequencesHoweverTheyAreSpread) {
  const Corpus corpus = corpus_of(3000);
  for (int64_t first_sample : {0, 8, 560, 568}) {
    const auto expected = starts_of_step(corpus, 8, 1, 1, first_sample);
    EXPECT_EQ(expected.size(), 8U);
    EXPECT_EQ(starts_of_step(corpus, 4, 1, 2, first_sample), expected);
    EXPECT_EQ(starts_of_step(corpus, 2, 4, 1, first_sample), expected);
    EXPECT_EQ(starts_of_step(corpus, 1, 2, 4, first_sample), expected);
  }
}

TEST_F(BatchesTest, EvaluationSequencesAreNotTrainedOn) {
  const Corpus corpus = corpus_of(250);  // token values are positions
  Batches batches(corpus, {.micro_batch = 2, .seq_len = 5}, 1);
  EXPECT_EQ(batches.training_sequences() + batches.evaluation_sequences(), 49);
  EXPECT_EQ(batches.evaluation_sequences(), 2);
  int32_t last_trained = 0;
  for (int64_t i = 0; i < batches.training_sequences(); ++i) {
    const Batch batch = batches.training(i, 0);
    last_trained =
        std::max(last_trained, *std::max_element(batch.tokens.begin(), batch.tokens.end()));
  }
  const Batch evaluation = batches.evaluation(0);
  EXPECT_EQ(evaluation.tokens.size(), 10U);
  EXPECT_EQ(evaluation.tokens[0], last_trained + 1);
  EXPECT_EQ(batches.evaluation(1).tokens.size(), 5U);
  EXPECT_TRUE(batches.evaluation(2).tokens.empty());
}

TEST_F(BatchesTest, TooLittleTextIsAnErrorWithTheNumbers) {
  const auto error = [&](int64_t size, int world_size) {
    const Corpus text = corpus_of(size);
    return error_of<ConfigError>(
        [&] { Batches(text, {.seq_len = 10, .world_size = world_size}, 1); });
  };
  EXPECT_THAT(error(10, 1), HasAll("10 tokens", "--seq_len 10 needs 11"));
  EXPECT_EQ(error(11, 1), "");
  EXPECT_THAT(error(31, 3), HasAll("3 ranks", "only 2 sequences"));
  EXPECT_EQ(error(41, 3), "");
}

}  // namespace
}  // namespace zerorun::train::testing
