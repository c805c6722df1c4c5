#include "zerorun/dtype.h"

#include <array>
#include <utility>

#include "core/check.h"

namespace zerorun {

std::string_view name_of(DType dtype) {
  static constexpr std::array<std::string_view, 5> kNames = {"fp32", "bf16", "fp16", "int64",
                                                             "uint8"};
  const auto index = static_cast<size_t>(dtype);
  return index < kNames.size() ? kNames[index] : "?";
}

DType parse_dtype(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, DType>, 11> kNames = {{
      {"fp32", DType::fp32},
      {"float32", DType::fp32},
      {"float", DType::fp32},
      {"bf16", DType::bf16},
      {"bfloat16", DType::bf16},
      {"fp16", DType::fp16},
      {"float16", DType::fp16},
      {"half", DType::fp16},
      {"int64", DType::int64},
      {"long", DType::int64},
      {"uint8", DType::uint8},
  }};
  std::string_view plain = name;
  if (plain.starts_with("torch.")) plain.remove_prefix(6);
  for (const auto& [spelling, dtype] : kNames) {
    if (plain == spelling) return dtype;
  }
  fail<ConfigError>("unknown dtype '{}': expected fp32, bf16 or fp16", name);
}

}  // namespace zerorun
