#include "train/data/batches.h"

#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/train/token_file.h"

namespace zerorun::train::testing {
namespace {

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
    return zerorun::testing::error_of<ConfigError>(
        [&] { Batches(corpus, {.seq_len = 10, .world_size = world_size}, 1); });
  };
  EXPECT_THAT(error(10, 1), AllOf(HasSubstr("10 tokens"), HasSubstr("--seq_len 10 needs 11")));
  EXPECT_EQ(error(11, 1), "");
  EXPECT_THAT(error(31, 3), AllOf(HasSubstr("3 ranks"), HasSubstr("only 2 sequences")));
  EXPECT_EQ(error(41, 3), "");
}

}  // namespace
}  // namespace zerorun::train::testing
