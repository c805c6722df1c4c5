#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun::testing {

// What a fuzz target defines: valid inputs, which the driver mutates where libFuzzer is not linked
// in, and what it does with any bytes.
std::vector<std::string> fuzz_seeds();
void fuzz(std::string_view input);

// Calls `parse`, which may throw E for foreign bytes, and nothing else.
template <typename E, typename Parse>
void may_throw(const Parse& parse) {
  try {
    parse();
  } catch (const E&) {
    return;
  }
}

// The JSON as the header of a safetensors file, with what follows it.
inline std::string with_length(std::string_view json, std::string_view more = {}) {
  const uint64_t length = json.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  return file.append(json).append(more);
}

}  // namespace zerorun::testing
