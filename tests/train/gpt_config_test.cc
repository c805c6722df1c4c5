#include "examples/train/gpt_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "zerorun/error.h"

namespace zerorun::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(GptConfigTest, PresetsHaveTheSizesOfThePaper) {
  GptConfig small = gpt_config("gpt2");
  GptConfig large = gpt_config("gpt2-xl");
  EXPECT_EQ(small.vocabulary, 0);  // left to the data
  small.vocabulary = large.vocabulary = 50257;
  // What Hugging Face's models of these names count.
  EXPECT_EQ(parameter_count(small), 124439808);
  EXPECT_EQ(parameter_count(large), 1557611200);
  EXPECT_EQ(gpt_config("gpt2-medium").heads, 16);
}

TEST(GptConfigTest, UnknownModelNamesThePresets) {
  EXPECT_THAT(error_of([] { gpt_config("gpt3"); }),
              AllOf(HasSubstr("'gpt3'"), HasSubstr("nano, mini, gpt2, gpt2-medium")));
}

TEST(GptConfigTest, UnreadableFileIsNamed) {
  EXPECT_THAT(error_of([] { gpt_config("/nowhere/config.json"); }),
              HasSubstr("/nowhere/config.json"));
}

TEST(GptConfigTest, JsonRoundTrip) {
  GptConfig config;
  config.vocabulary = 300;
  config.positions = 40;
  config.width = 24;
  config.layers = 3;
  config.heads = 4;
  config.inner = 100;
  config.layer_norm_epsilon = 1e-6F;
  EXPECT_EQ(gpt_config_from_json(to_json(config), "test"), config);
}

TEST(GptConfigTest, MissingKeysHaveHuggingFacesDefaultsButTheVocabulary) {
  const GptConfig config = gpt_config_from_json(R"({"n_embd": 96, "n_inner": null})", "test");
  EXPECT_EQ(config.vocabulary, 0);
  EXPECT_EQ(config.inner, 4 * 96);
  EXPECT_EQ(config.layers, 12);
}

TEST(GptConfigTest, BadValuesNameTheKey) {
  const auto error = [](const char* json) {
    return error_of([&] { gpt_config_from_json(json, "m.json"); });
  };
  EXPECT_THAT(error(R"({"n_layer": 0})"), AllOf(HasSubstr("m.json: /n_layer is 0")));
  EXPECT_THAT(error(R"({"n_layer": "3"})"), HasSubstr("/n_layer is \"3\""));
  EXPECT_THAT(error(R"({"n_embd": 99999999999})"), HasSubstr("/n_embd"));
  EXPECT_THAT(error(R"({"n_embd": 100, "n_head": 12})"), HasSubstr("not divisible"));
  EXPECT_THAT(error(R"({"activation_function": "relu"})"), HasSubstr("gelu_new"));
  EXPECT_THAT(error(R"({"model_type": "llama"})"), HasSubstr("llama"));
  EXPECT_THAT(error(R"({"tie_word_embeddings": false})"), HasSubstr("tie_word_embeddings"));
  EXPECT_THAT(error(R"({"layer_norm_epsilon": 0})"), HasSubstr("layer_norm_epsilon"));
  EXPECT_THAT(error("[1]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(error("{"), HasSubstr("expected a JSON object"));
}

}  // namespace
}  // namespace zerorun::train
