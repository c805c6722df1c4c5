#include "train/model/gpt_config.h"

#include "tests/common.h"
#include "tests/error_of.h"

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

TEST(GptConfigTest, WhatIsNoPresetIsAFile) {
  EXPECT_THAT(error_of([] { gpt_config("gpt22"); }),
              AllOf(HasSubstr("'gpt22' (did you mean \"gpt2\"?)"),
                    HasSubstr("nano, mini, gpt2, gpt2-medium")));
  EXPECT_THAT(error_of([] { gpt_config("/nowhere/config.json"); }),
              HasSubstr("/nowhere/config.json"));
  const GptConfig config{300, 40, 24, 3, 4, 100, 1e-6F};
  EXPECT_EQ(gpt_config(HfConfig(to_json(config), "test")), config);
}

// A valid file with one more key.
std::string shape_with(const std::string& more) {
  return R"({"n_embd": 96, "n_layer": 2, "n_head": 12, "n_positions": 64)" + more + "}";
}

// The file of openai-community/gpt2, and a key that newer ones have.
TEST(GptConfigTest, ReadsHuggingFacesOwn) {
  const GptConfig config = gpt_config(HfConfig(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_inner": null, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
    "summary_use_proj": true,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
    "vocab_size": 50257})",
                                               "config.json"));
  GptConfig expected = gpt_config("gpt2");
  expected.vocabulary = 50257;
  EXPECT_EQ(config, expected);
}

TEST(GptConfigTest, ErrorsNameTheKey) {
  const std::string deep = R"({"n_embd": 16777216, "n_layer": 16777216, "n_head": 1,)";
  for (const auto& [json, message] : std::vector<std::pair<std::string, const char*>>{
           {"[1]", "expected a JSON object"},
           {"{", "expected a JSON object"},
           {"{}",
            "m.json: /n_positions is missing: expected the config.json of a Hugging Face GPT-2"},
           {R"({"n_embd": 96, "n_layers": 2, "n_head": 12, "n_positions": 64})",
            "unknown key /n_layers; did you mean /n_layer?"},
           {shape_with(R"(, "n_iner": 5)"), "/n_iner; did you mean /n_inner?"},
           {deep + R"("n_positions": 8})", "/n_layer 16777216"},
           {shape_with(R"(, "activation_function": "relu")"), "gelu_new"},
           {shape_with(R"(, "model_type": "llama")"), "llama"},
           {shape_with(R"(, "tie_word_embeddings": false)"), "tie_word_embeddings"},
           {shape_with(R"(, "layer_norm_epsilon": 0)"), "layer_norm_epsilon"},
           // The last of equal keys counts.
           {shape_with(R"(, "n_layer": 0)"), "m.json: /n_layer is 0"},
           {shape_with(R"(, "n_layer": "3")"), R"(/n_layer is "3")"},
           {shape_with(R"(, "n_embd": 99999999999)"), "/n_embd"},
           {shape_with(R"(, "n_embd": 100)"),
            "/n_head is 12: expected a divisor of the width, 100"},
           {shape_with(R"(, "n_head": null)"), "/n_head is null"}}) {
    EXPECT_THAT(error_of([&] { gpt_config(HfConfig(json, "m.json")); }), HasSubstr(message))
        << json;
  }
}

}  // namespace
}  // namespace zerorun::train
