#include "train/data/corpus.h"

#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/train/token_file.h"
#include "train/data/batches.h"

namespace zerorun::train::testing {
namespace {

std::vector<int32_t> tokens_of(const Corpus& corpus, int64_t begin, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  corpus.read(begin, tokens);
  return tokens;
}

std::string text_of(const Corpus& corpus) {
  const auto tokens = tokens_of(corpus, 0, corpus.size());
  return {tokens.begin(), tokens.end()};
}

std::string error_from(const std::vector<std::string>& paths) {
  return error_of([&] { const Corpus corpus(paths); });
}

TEST(CorpusTest, ReadsFilesAsBytesInTheirOrder) {
  const Scratch folder;
  const Corpus corpus({folder.write("b", "xyz\xff"), folder.write("a", "12")});
  EXPECT_EQ(corpus.size(), 6);
  EXPECT_EQ(corpus.vocabulary(), 256);
  EXPECT_THAT(tokens_of(corpus, 0, 6), ElementsAre('x', 'y', 'z', 255, '1', '2'));
  EXPECT_THAT(tokens_of(corpus, 2, 3), ElementsAre('z', 255, '1'));
}

TEST(CorpusTest, WalksFoldersInTheOrderOfNamesAndSkipsWhatIsNotText) {
  const Scratch folder;
  folder.write("c/deep/2", "C");
  folder.write("c/deep/1", "B");
  folder.write("a", "A");
  folder.write("d", "D");
  folder.write("empty", "");
  folder.write(".git/config", "hidden");
  folder.write("image", std::string("\x89PNG\0\0", 6));
  const Corpus corpus({folder.path()});
  EXPECT_EQ(text_of(corpus), "ABCD");
  EXPECT_EQ(corpus.file_count(), 4);
}

TEST(CorpusTest, TheHashIsThatOfTheContent) {
  const Scratch folder;
  const uint64_t whole = Corpus({folder.write("whole", "abcdef")}).hash();
  EXPECT_EQ(Corpus({folder.write("x/1", "ab"), folder.write("x/2", "cdef")}).hash(), whole);
  EXPECT_NE(Corpus({folder.write("order", "abdcef")}).hash(), whole);
  EXPECT_NE(Corpus({folder.write("longer", "abcdefg")}).hash(), whole);
  const std::string tokens = folder.write("t.bin", token_file(9, {1, 2, 3, 4}));
  const std::string others = folder.write("u.bin", token_file(9, {1, 2, 3, 5}));
  EXPECT_NE(Corpus({tokens}).hash(), Corpus({others}).hash());
}

TEST(CorpusTest, TheHashOfMuchDataSeesBothEnds) {
  constexpr int64_t kSize = (int64_t{64} << 20) + 1000;
  const Scratch folder;
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

TEST(CorpusTest, ReadsTokenFiles) {
  const Scratch folder;
  const Corpus corpus({folder.write("1.bin", token_file(50257, {7, 50256, 0})),
                       folder.write("2.bin", token_file(50257, {1}))});
  EXPECT_EQ(corpus.vocabulary(), 50257);
  EXPECT_FALSE(corpus.is_text());
  EXPECT_THAT(tokens_of(corpus, 1, 3), ElementsAre(50256, 0, 1));
}

TEST(CorpusTest, TokenOutsideTheVocabularyIsFoundWhenRead) {
  const Scratch folder;
  const Corpus corpus({folder.write("1.bin", token_file(10, {7, 3, 10}))});
  EXPECT_THAT(tokens_of(corpus, 0, 2), ElementsAre(7, 3));
  EXPECT_THAT([&] { tokens_of(corpus, 1, 2); },
              ThrowsMessage<IoError>(HasSubstr("1.bin: token 10 at position 2")));
}

TEST(CorpusTest, DamagedTokenFilesAreRefused) {
  const Scratch folder;
  const std::string good = token_file(10, {1, 2, 3});
  const auto error = [&](const std::string& content) {
    return error_from({folder.write("x.bin", content)});
  };
  const auto with = [&](size_t at, char byte) {
    std::string content = good;
    content[at] = byte;
    return content;
  };
  EXPECT_EQ(error(good), "");
  EXPECT_THAT(error(good.substr(0, good.size() - 1)), HasSubstr("truncated"));
  EXPECT_THAT(error(good + "zz"), HasSubstr("the header says 3 tokens"));
  EXPECT_THAT(error(with(23, '\x7f')), HasSubstr("truncated"));
  EXPECT_THAT(error(with(8, '\2')), HasSubstr("version 2"));
  EXPECT_THAT(error(with(12, '\0')), HasSubstr("vocabulary of 0"));
  EXPECT_THAT(error(with(14, '\2')), HasSubstr("vocabulary of 131082"));
  for (size_t size : {0, 3, 8, 31}) {
    EXPECT_THAT(error(good.substr(0, size)), HasSubstr("header")) << size;
  }
}

TEST(CorpusTest, TextAndTokensDoNotMix) {
  const Scratch folder;
  folder.write("a.txt", "text");
  folder.write("b.bin", token_file(10, {1}));
  EXPECT_THAT(error_from({folder.path()}),
              AllOf(HasSubstr("a.txt is text"), HasSubstr("b.bin is tokens")));
  EXPECT_THAT(error_from({folder.path("b.bin"), folder.write("c.bin", token_file(11, {1}))}),
              AllOf(HasSubstr("b.bin has 10"), HasSubstr("c.bin has 11")));
}

TEST(CorpusTest, NothingToReadIsAnErrorThatNamesThePath) {
  const Scratch folder;
  EXPECT_THAT(error_from({folder.path("missing")}), HasSubstr("missing"));
  EXPECT_THAT(error_from({folder.path()}),
              AllOf(HasSubstr("empty"), HasSubstr(folder.path().string())));
  EXPECT_THAT(error_from({folder.write("empty", "")}), HasSubstr("empty"));
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_from({folder.path("pipe")}), HasSubstr("expected a file or a folder"));
  EXPECT_THAT(error_from({}), HasSubstr("empty"));
}

TEST(DefaultTextTest, PrefersAPythonLibraryInTheHomeFolderToNothing) {
  // The machine's files outside the home folder are not known here, only that something is found.
  const Scratch home;
  home.write(".pyenv/versions/3.9.1/lib/python3.9/os.py", "import sys");
  home.write(".pyenv/versions/3.9.1/lib/python3.9/site-packages/other.py", "other");
  const DefaultText text = find_default_text(home.path());
  EXPECT_FALSE(text.paths.empty());
  EXPECT_FALSE(text.description.empty());
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

TEST(DataOrderTest, SeedsAndEpochsDiffer) {
  const auto first = [](uint64_t seed, int64_t from) {
    const DataOrder order(1000, seed);
    std::vector<int64_t> sequences;
    for (int64_t i = 0; i < 20; ++i) sequences.push_back(order.sequence(from + i));
    return sequences;
  };
  EXPECT_EQ(first(1, 0), first(1, 0));
  EXPECT_NE(first(1, 0), first(2, 0));
  EXPECT_NE(first(1, 0), first(1, 1000));
  std::vector<int64_t> sorted = first(1, 0);
  std::sort(sorted.begin(), sorted.end());
  EXPECT_NE(first(1, 0), sorted);
}

TEST(DataOrderTest, NeighboursAreScattered) {
  constexpr int64_t kCount = 10000;
  const DataOrder order(kCount, 1);
  double sum = 0.0;
  for (int64_t i = 0; i + 1 < kCount; ++i) {
    sum += std::abs(static_cast<double>(order.sequence(i) - order.sequence(i + 1)));
  }
  // Two independent uniform numbers in [0, n) lie n / 3 apart on average.
  EXPECT_NEAR(sum / kCount, kCount / 3.0, 0.02 * kCount);
}

class BatchesTest : public ::testing::Test {
 protected:
  // Token i has the value i % 251, so a token tells its position.
  std::string text(int64_t size) {
    std::string bytes;
    for (int64_t i = 0; i < size; ++i) bytes += static_cast<char>(i % 251);
    return folder_.write("text", bytes);
  }
  Scratch folder_;
};

TEST_F(BatchesTest, TargetsAreTheNextTokens) {
  const Corpus corpus({text(1000)});
  Batches batches(corpus, {.micro_batch = 3, .seq_len = 7}, 1);
  const Batch batch = batches.training(0, 0);
  ASSERT_EQ(batch.tokens.size(), 21U);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    EXPECT_EQ(batch.targets[i], (batch.tokens[i] + 1) % 251);
  }
}

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
      for (size_t i = 0; i < batch.tokens.size(); i += 5) starts.insert(batch.tokens[i]);
    }
  }
  return starts;
}

TEST_F(BatchesTest, AStepSeesTheSameSequencesHoweverTheyAreSpread) {
  const Corpus corpus({text(3000)});
  for (int64_t first_sample : {0, 8, 560, 568}) {
    const auto expected = starts_of_step(corpus, 8, 1, 1, first_sample);
    EXPECT_EQ(expected.size(), 8U);
    EXPECT_EQ(starts_of_step(corpus, 4, 1, 2, first_sample), expected);
    EXPECT_EQ(starts_of_step(corpus, 2, 4, 1, first_sample), expected);
    EXPECT_EQ(starts_of_step(corpus, 1, 2, 4, first_sample), expected);
  }
}

TEST_F(BatchesTest, EvaluationSequencesAreNotTrainedOn) {
  const Corpus corpus({text(250)});  // token values are positions
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
    const Corpus corpus({text(size)});
    return error_of<ConfigError>(
        [&] { Batches(corpus, {.seq_len = 10, .world_size = world_size}, 1); });
  };
  EXPECT_THAT(error(10, 1), AllOf(HasSubstr("10 tokens"), HasSubstr("--seq_len 10 needs 11")));
  EXPECT_EQ(error(11, 1), "");
  EXPECT_THAT(error(31, 3), AllOf(HasSubstr("3 ranks"), HasSubstr("only 2 sequences")));
  EXPECT_EQ(error(41, 3), "");
}

}  // namespace
}  // namespace zerorun::train::testing
