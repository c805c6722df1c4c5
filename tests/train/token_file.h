#pragma once

#include "tests/common.h"

namespace zerorun::train::testing {

using zerorun::testing::Scratch;

// A token file as docs/data_format.md describes it.
inline std::string token_file(uint32_t vocabulary, const std::vector<uint16_t>& tokens) {
  const auto number = [](auto value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  std::string content = "ZRTOKENS" + number(uint32_t{1}) + number(vocabulary) +
                        number(uint64_t{tokens.size()}) + number(uint64_t{0});
  for (const uint16_t token : tokens) content += number(token);
  return content;
}

}  // namespace zerorun::train::testing
