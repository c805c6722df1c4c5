// Fits y = sin(x) with a perceptron of one hidden layer, sharded over the ranks of the job:
//   zerorun --num_gpus 2 ./mlp
//   zerorun --num_gpus 2 ./mlp ds_config.json
// Uses only the public API. The model is a few loops: zerorun needs gradients, however they are
// computed.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <span>
#include <vector>

#include "zerorun/zerorun.h"

namespace {

constexpr int kHidden = 64;
constexpr int kSteps = 500;
constexpr char kDefaultConfig[] = R"({
  "train_micro_batch_size_per_gpu": 32,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}
})";

// Initial weights are uniform in [-1, 1), biases are 0. A rank fills only the elements that it
// stores, so the value of an element must depend only on its parameter and index.
void fill(zerorun::ParameterId id, int64_t begin, std::span<float> out) {
  std::minstd_rand random(static_cast<unsigned>(id) + 1);
  random.discard(static_cast<unsigned long long>(begin));
  const bool is_bias = id % 2 == 1;
  for (float& value : out) {
    const auto draw = static_cast<float>(random()) / static_cast<float>(random.max());
    value = is_bias ? 0.0F : 2 * draw - 1;
  }
}

std::span<float> gradient(zerorun::Engine& engine, zerorun::ParameterId id) {
  const zerorun::GradientView gradient = engine.gradient(id);
  const auto values = gradient.view.span<float>();
  if (!gradient.accumulate) std::ranges::fill(values, 0.0F);
  return values;
}

// Runs forward and backward of a micro-batch; returns its mean squared error.
float micro_step(zerorun::Engine& engine, std::span<const float> batch) {
  const auto scale = 1.0F / static_cast<float>(batch.size());
  for (const int module : {0, 1}) engine.gather(module);  // does nothing below stage 3
  std::array<std::span<float>, 4> p;                      // parameters
  std::array<std::span<float>, 4> d;                      // their gradients
  for (int id = 0; id < 4; ++id) {
    p[id] = engine.parameter(id).span<float>();
    d[id] = gradient(engine, id);
  }
  float loss = 0;
  std::array<float, kHidden> hidden{};
  for (const float x : batch) {
    float error = p[3][0] - std::sin(x);
    for (size_t j = 0; j < kHidden; ++j) {
      hidden[j] = std::tanh(p[0][j] * x + p[1][j]);
      error += p[2][j] * hidden[j];
    }
    loss += error * error * scale;
    const float d_y = 2 * error * scale;
    d[3][0] += d_y;
    for (size_t j = 0; j < kHidden; ++j) {
      d[2][j] += d_y * hidden[j];
      const float d_hidden = d_y * p[2][j] * (1 - hidden[j] * hidden[j]);
      d[0][j] += d_hidden * x;
      d[1][j] += d_hidden;
    }
  }
  // A larger model calls this during backward, so that reductions overlap with it.
  for (int id = 3; id >= 0; --id) engine.grad_ready(id);
  for (const int module : {1, 0}) engine.release(module);
  return loss;
}

void train(const char* config_path) {
  zerorun::ParsedConfig parsed =
      config_path ? zerorun::load_config(config_path) : zerorun::parse_config(kDefaultConfig);
  const auto comm = zerorun::connect(zerorun::rank_from_environment());
  zerorun::resolve_auto(parsed, {.world_size = comm->world_size()});
  const zerorun::Config& config = parsed.config;
  const auto device = zerorun::make_cpu_device();
  const auto engine =
      zerorun::Engine::create(config, *device, *comm,
                              {{.name = "hidden.weight", .shape = {kHidden, 1}, .module = "hidden"},
                               {.name = "hidden.bias", .shape = {kHidden}, .module = "hidden"},
                               {.name = "output.weight", .shape = {1, kHidden}, .module = "output"},
                               {.name = "output.bias", .shape = {1}, .module = "output"}},
                              {{.lr = config.optimizer.lr}});
  engine->initialize_parameters(fill);

  std::mt19937 random(static_cast<unsigned>(comm->rank()));  // every rank uses different samples
  std::uniform_real_distribution<float> uniform(-3.0F, 3.0F);
  std::vector<float> x(static_cast<size_t>(config.batch.micro_batch_size));
  for (int step = 1; step <= kSteps; ++step) {
    float loss = 0;
    do {
      std::ranges::generate(x, [&] { return uniform(random); });
      loss = micro_step(*engine, x);
    } while (!engine->end_micro_step());
    const zerorun::StepResult result = engine->step();
    if (comm->rank() == 0 && (step == 1 || step % 100 == 0)) {
      std::printf("step %3d  loss %.5f  grad_norm %.3f\n", step, static_cast<double>(loss),
                  result.grad_norm);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train(argc > 1 ? argv[1] : nullptr);
  } catch (const zerorun::ConfigError& error) {
    std::fprintf(stderr, "mlp: %s\n", error.what());
    return 2;
  } catch (const zerorun::Error& error) {
    std::fprintf(stderr, "mlp: %s\n", error.what());
    return 1;
  }
  return 0;
}
