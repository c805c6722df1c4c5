#include "tests/checkpoint/sharded.h"
#include "tests/common.h"

namespace zerorun {
namespace {

// Saves one model, loads into another that `change` made of it, and returns the error.
std::string load_error(const std::function<void(FakeModel&)>& change) {
  const TemporaryDirectory directory;
  Sharded sharded = testing::on_one_rank();
  sharded.save({.directory = directory.string()});
  change(sharded.model);
  std::string result = "loaded";
  testing::on_one_rank(sharded.model).run(2, [&](FakeEngine& engine, Communicator& comm) {
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
  EXPECT_THAT(
      load_error([](FakeModel& model) {
        model.specs[1].name = "h.0.ln.wieght";
        model.specs[2].shape = {5, 3, 7};
        model.specs[3].trainable = true;
        model.specs[5].name = "module.scale";
      }),
      AllOf(HasSubstr("h.0.mlp.weight has shape"), HasSubstr("h.0.frozen is frozen"),
            HasSubstr("no parameter h.0.ln.wieght, which this model has (nearest: h.0.ln.weight)"),
            HasSubstr("no parameter module.scale, which this model has (nearest: scale)"),
            HasSubstr("parameter h.0.ln.weight, which this model lacks (nearest: h.0.ln.wieght)"),
            HasSubstr("the parameter scale, which this model lacks (nearest: module.scale)")));
}

}  // namespace
}  // namespace zerorun
