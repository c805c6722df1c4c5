#include "train/model/gpt_config.h"

#include <nlohmann/json.hpp>

#include "tests/common.h"
#include "tests/error_of.h"
#include "zerorun/error.h"

namespace zerorun::train {
namespace {

TEST(GptConfigTest, PresetsHaveTheSizesOfThePaper) {
  GptConfig small = gpt_config("gpt2");
  GptConfig large = gpt_config("gpt2-xl");
  EXPECT_EQ(small.vocabulary, 0);  // left to the data
  small.vocabulary = large.vocabulary = 50257;
  // Hugging Face's models of these names count as many.
  EXPECT_EQ(parameter_count(small), 124439808);
  EXPECT_EQ(parameter_count(large), 1557611200);
  EXPECT_EQ(gpt_config("gpt2-medium").heads, 16);
}

TEST(GptConfigTest, UnknownModelNamesThePresets) {
  EXPECT_THAT(error_of([] { gpt_config("gpt22"); }),
              AllOf(HasSubstr("'gpt22' (did you mean \"gpt2\"?)"),
                    HasSubstr("nano, mini, gpt2, gpt2-medium")));
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
  EXPECT_EQ(gpt_config(HfConfig(to_json(config), "test")), config);
}

// A valid file with one more key.
std::string shape_with(const std::string& more) {
  return R"({"n_embd": 96, "n_layer": 2, "n_head": 12, "n_positions": 64)" + more + "}";
}

TEST(GptConfigTest, KeysThatNeedNotBeGiven) {
  const GptConfig config = gpt_config(HfConfig(shape_with(R"(, "n_inner": null)"), "test"));
  EXPECT_EQ(config.vocabulary, 0);
  EXPECT_EQ(config.inner, 4 * 96);
  EXPECT_EQ(config.layers, 2);
}

// The file of openai-community/gpt2.
TEST(GptConfigTest, ReadsHuggingFacesOwn) {
  const GptConfig config = gpt_config(HfConfig(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
    "summary_use_proj": true,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
    "vocab_size": 50257})",
                                               "config.json"));
  GptConfig expected = gpt_config("gpt2");
  expected.vocabulary = 50257;
  EXPECT_EQ(config, expected);
}

TEST(GptConfigTest, OtherFilesAndMisspeltKeysAreRefused) {
  const auto error = [](const std::string& json) {
    return error_of([&] { gpt_config(HfConfig(json, "m.json")); });
  };
  EXPECT_THAT(error("{}"), AllOf(HasSubstr("m.json: /n_positions is missing"),
                                 HasSubstr("at least n_positions, n_embd, n_layer, n_head")));
  EXPECT_THAT(error(R"({"train_batch_size": 8})"), HasSubstr("is missing"));
  EXPECT_THAT(error(R"({"n_embd": 96, "n_layers": 2, "n_head": 12, "n_positions": 64})"),
              HasSubstr("unknown key /n_layers; did you mean /n_layer?"));
  EXPECT_THAT(error(shape_with(R"(, "n_iner": 5)")), HasSubstr("/n_iner; did you mean /n_inner?"));
  EXPECT_THAT(error(shape_with(R"(, "vocab_sise": 5)")), HasSubstr("did you mean /vocab_size?"));
}

TEST(GptConfigTest, BadValuesNameTheKey) {
  const auto error = [](const std::string& json) {
    return error_of([&] { gpt_config(HfConfig(json, "m.json")); });
  };
  const auto with = [&](const std::string& key, const std::string& value) {
    nlohmann::json json = nlohmann::json::parse(shape_with(""));
    json[key] = nlohmann::json::parse(value);
    return error(json.dump());
  };
  EXPECT_THAT(with("n_layer", "0"), AllOf(HasSubstr("m.json: /n_layer is 0")));
  EXPECT_THAT(with("n_layer", R"("3")"), HasSubstr("/n_layer is \"3\""));
  EXPECT_THAT(with("n_embd", "99999999999"), HasSubstr("/n_embd"));
  EXPECT_THAT(with("n_embd", "100"),
              HasSubstr("/n_head is 12: expected a divisor of the width, 100"));
  EXPECT_THAT(error(R"({"n_embd": 16777216, "n_layer": 16777216, "n_head": 1, "n_positions": 8})"),
              AllOf(HasSubstr("5.7e+22 parameters"), HasSubstr("/n_layer 16777216")));
  EXPECT_THAT(with("n_head", "null"), HasSubstr("/n_head is null"));
  EXPECT_THAT(with("activation_function", R"("relu")"), HasSubstr("gelu_new"));
  EXPECT_THAT(with("model_type", R"("llama")"), HasSubstr("llama"));
  EXPECT_THAT(with("tie_word_embeddings", "false"), HasSubstr("tie_word_embeddings"));
  EXPECT_THAT(with("layer_norm_epsilon", "0"), HasSubstr("layer_norm_epsilon"));
  EXPECT_THAT(error("[1]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(error("{"), HasSubstr("expected a JSON object"));
}

}  // namespace
}  // namespace zerorun::train
