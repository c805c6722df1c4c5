#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <optional>

#include "core/check.h"
#include "zerorun/config.h"

// Computes missing batch sizes from train_batch_size = train_micro_batch_size_per_gpu x
// gradient_accumulation_steps x ranks (rules of DeepSpeed 0.19, runtime/config.py).

namespace zerorun {

namespace {

constexpr const char* kTotal = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kSteps = "gradient_accumulation_steps";

int64_t multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    fail<ConfigError>("batch sizes: {} x {} samples are more than 2^63", a, b);
  }
  return product;
}

// Returns the two multiples of `unit`, at least `unit`, that are nearest to `value`; the nearest
// first.
std::array<int64_t, 2> nearest_multiples(int64_t value, int64_t unit) {
  const int64_t below = std::max<int64_t>(value / unit, 1);
  const bool has_above = below < std::numeric_limits<int64_t>::max() / unit;
  const int64_t other = has_above ? below + 1 : std::max<int64_t>(below - 1, 1);
  std::array<int64_t, 2> multiples = {below * unit, other * unit};
  if (std::abs(multiples[1] - value) < std::abs(multiples[0] - value)) {
    std::swap(multiples[0], multiples[1]);
  }
  return multiples;
}

std::string describe(const BatchConfig& batch, const BatchConfig& given, int world_size) {
  const auto source = [](int64_t value) { return value == 0 ? "inferred" : "given"; };
  return fmt::format(
      "{} {} ({}) is not {} {} ({}) x {} {} ({}) x {} rank{} = {}", kTotal, batch.train_batch_size,
      source(given.train_batch_size), kMicro, batch.micro_batch_size,
      source(given.micro_batch_size), kSteps, batch.accumulation_steps,
      source(given.accumulation_steps), world_size, world_size == 1 ? "" : "s",
      multiply(multiply(batch.micro_batch_size, batch.accumulation_steps), world_size));
}

// Returns the given total divided by `unit`, or throws an error that suggests divisible totals.
int64_t divide_total(const BatchConfig& given, int world_size, int64_t unit,
                     int64_t BatchConfig::*inferred, std::string_view inferred_name) {
  if (given.train_batch_size % unit == 0) return given.train_batch_size / unit;
  BatchConfig nearest = given;
  nearest.accumulation_steps = std::max<int64_t>(given.accumulation_steps, 1);
  nearest.*inferred = std::max<int64_t>(given.train_batch_size / unit, 1);
  const auto totals = nearest_multiples(given.train_batch_size, unit);
  fail<ConfigError>("contradictory batch sizes: {}; nearest valid: {} {} ({} {}) or {} ({} {})",
                    describe(nearest, given, world_size), kTotal, totals[0], inferred_name,
                    totals[0] / unit, totals[1], inferred_name, totals[1] / unit);
}

void check_all_given(const BatchConfig& given, int world_size) {
  const int64_t per_step = multiply(given.micro_batch_size, world_size);
  const int64_t product = multiply(per_step, given.accumulation_steps);
  if (given.train_batch_size == product) return;
  const int64_t total = given.train_batch_size;
  const int64_t steps_unit = multiply(given.accumulation_steps, world_size);
  std::string other;
  if (total % per_step == 0) {
    other = fmt::format("{} {}", kSteps, total / per_step);
  } else if (total % steps_unit == 0) {
    other = fmt::format("{} {}", kMicro, total / steps_unit);
  } else {
    const auto totals = nearest_multiples(total, per_step);
    const int64_t near = totals[0] == product ? totals[1] : totals[0];
    other = fmt::format("{} {} with {} {}", kTotal, near, kSteps, near / per_step);
  }
  fail<ConfigError>("contradictory batch sizes: {}; nearest valid: {} {}, or {}",
                    describe(given, given, world_size), kTotal, product, other);
}

void check_signs(const BatchConfig& given, int world_size) {
  if (world_size < 1) fail<ConfigError>("world size {}: expected at least 1 rank", world_size);
  for (const auto& [name, value] :
       {std::pair(kTotal, given.train_batch_size), std::pair(kMicro, given.micro_batch_size),
        std::pair(kSteps, given.accumulation_steps)}) {
    if (value < 0) fail<ConfigError>("{} is {}, expected at least 1", name, value);
  }
}

}  // namespace

BatchConfig resolve_batch(const BatchConfig& given, int world_size) {
  check_signs(given, world_size);
  BatchConfig batch = given;
  if (given.train_batch_size == 0 && given.micro_batch_size == 0) {
    const std::string only = given.accumulation_steps == 0
                                 ? ""
                                 : fmt::format(", only {} {}", kSteps, given.accumulation_steps);
    fail<ConfigError>("batch sizes: neither {} nor {} is given{}; set one of them, e.g. {} 1",
                      kTotal, kMicro, only, kMicro);
  }
  if (given.train_batch_size == 0) {
    batch.accumulation_steps = std::max<int64_t>(given.accumulation_steps, 1);
    batch.train_batch_size =
        multiply(multiply(batch.micro_batch_size, batch.accumulation_steps), world_size);
  } else if (given.micro_batch_size == 0) {
    batch.accumulation_steps = std::max<int64_t>(given.accumulation_steps, 1);
    batch.micro_batch_size =
        divide_total(given, world_size, multiply(batch.accumulation_steps, world_size),
                     &BatchConfig::micro_batch_size, "micro-batch");
  } else if (given.accumulation_steps == 0) {
    batch.accumulation_steps =
        divide_total(given, world_size, multiply(given.micro_batch_size, world_size),
                     &BatchConfig::accumulation_steps, "accumulation");
  } else {
    check_all_given(given, world_size);
  }
  return batch;
}

}  // namespace zerorun
