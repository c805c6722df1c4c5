#pragma once

#include "core/check.h"
#include "tests/common.h"
#include "zerorun/communicator.h"

// Inputs of collectives and their results, computed one element at a time.
namespace zerorun::testing {

using Bytes = std::vector<std::byte>;

inline float float_at(const std::byte* data, DType dtype, int64_t i) {
  if (dtype == DType::bf16) return to_float(reinterpret_cast<const Bf16*>(data)[i]);
  if (dtype == DType::fp16) return to_float(reinterpret_cast<const Fp16*>(data)[i]);
  return reinterpret_cast<const float*>(data)[i];
}

inline void set_float(std::byte* data, DType dtype, int64_t i, float value) {
  if (dtype == DType::bf16) {
    reinterpret_cast<Bf16*>(data)[i] = to_bf16(value);
  } else if (dtype == DType::fp16) {
    reinterpret_cast<Fp16*>(data)[i] = to_fp16(value);
  } else {
    reinterpret_cast<float*>(data)[i] = value;
  }
}

// Large values repeat after a prime number of elements, which no chunk is a multiple of: what is
// done an element at a time takes minutes under a sanitizer.
constexpr int64_t kPeriod = 4099;

inline Bytes repeated(const Bytes& period, size_t nbytes) {
  Bytes bytes(nbytes);
  for (size_t i = 0; i < nbytes; i += period.size()) {
    std::memcpy(bytes.data() + i, period.data(), std::min(period.size(), nbytes - i));
  }
  return bytes;
}

inline bool repeats(const Bytes& bytes, size_t period) {
  return bytes.size() > period &&
         std::memcmp(bytes.data(), bytes.data() + period, bytes.size() - period) == 0;
}

// The same on every rank that asks for the same seed.
inline Bytes random_values(DType dtype, int64_t numel, unsigned seed) {
  if (numel > kPeriod) {
    return repeated(random_values(dtype, kPeriod, seed),
                    static_cast<size_t>(numel) * size_of(dtype));
  }
  std::mt19937 random(seed);
  Bytes bytes(static_cast<size_t>(numel) * size_of(dtype));
  if (dtype == DType::int64 || dtype == DType::uint8) {
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint32_t)) {
      const auto word = static_cast<uint32_t>(random());
      std::memcpy(bytes.data() + i, &word, std::min(sizeof(word), bytes.size() - i));
    }
    return bytes;
  }
  for (int64_t i = 0; i < numel; ++i) {
    const auto word = static_cast<int32_t>(random());
    set_float(bytes.data(), dtype, i, static_cast<float>(word) * 0x1p-25F);
  }
  return bytes;
}

template <typename T>
T combine(ReduceOp op, T a, T b) {
  if (op == ReduceOp::max) return std::max(a, b);
  if (op == ReduceOp::min) return std::min(a, b);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));  // wraps
  } else {
    return a + b;
  }
}

// Combines values [0, n) in the tree that zerorun/communicator.h defines.
template <typename T>
T combine_tree(ReduceOp op, std::span<const T> values) {
  if (values.size() == 1) return values.front();
  const size_t left = std::bit_ceil(values.size()) / 2;
  return combine(op, combine_tree(op, values.first(left)), combine_tree(op, values.subspan(left)));
}

// Reduces `inputs`, one per rank, into `out`.
inline void reference_reduce(const std::vector<Bytes>& inputs, DType dtype, ReduceOp op,
                             Output output, DType out_dtype, Bytes& out) {
  const size_t period = kPeriod * size_of(dtype);
  const size_t out_period = kPeriod * size_of(out_dtype);
  if (repeats(out, out_period) &&
      std::ranges::all_of(inputs, [&](const Bytes& input) { return repeats(input, period); })) {
    std::vector<Bytes> begins;
    for (const Bytes& input : inputs) begins.emplace_back(input.begin(), input.begin() + period);
    Bytes result(out.begin(), out.begin() + out_period);
    reference_reduce(begins, dtype, op, output, out_dtype, result);
    out = repeated(result, out.size());
    return;
  }
  const auto numel = static_cast<int64_t>(inputs.front().size() / size_of(dtype));
  const auto word = [](const Bytes& bytes, int64_t i) {
    return reinterpret_cast<const int64_t*>(bytes.data())[i];
  };
  std::vector<float> values;
  for (int64_t i = 0; i < numel; ++i) {
    if (dtype == DType::int64) {
      int64_t total = word(inputs.front(), i);
      for (size_t k = 1; k < inputs.size(); ++k) total = combine(op, total, word(inputs[k], i));
      if (output == Output::accumulate) total = combine(op, word(out, i), total);
      reinterpret_cast<int64_t*>(out.data())[i] = total;
      continue;
    }
    values.clear();
    for (const Bytes& input : inputs) values.push_back(float_at(input.data(), dtype, i));
    float total = combine_tree<float>(op, values);
    if (output == Output::accumulate) {
      total = combine(op, float_at(out.data(), out_dtype, i), total);
    }
    set_float(out.data(), out_dtype, i, total);
  }
}

// Bit for bit; names the first element that differs.
inline void expect_same(const Bytes& expected, TensorView got, const std::string& what) {
  ASSERT_EQ(expected.size(), got.nbytes()) << what;
  if (got.empty() || std::memcmp(expected.data(), got.data, got.nbytes()) == 0) return;
  const auto differs = std::mismatch(expected.begin(), expected.end(), got.data);
  const auto element = static_cast<size_t>(differs.first - expected.begin()) / size_of(got.dtype);
  ADD_FAILURE() << what << ": element " << element << " of " << got.numel << " differs";
}

inline TensorView view(Bytes& bytes, DType dtype) {
  return {bytes.data(), static_cast<int64_t>(bytes.size() / size_of(dtype)), dtype};
}

}  // namespace zerorun::testing
