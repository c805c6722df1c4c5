#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace zerorun {

// XXH3, 64 bits, seed 0: the checksum of every byte of a checkpoint.
class Hash {
 public:
  Hash();
  void update(std::span<const std::byte> bytes);
  uint64_t value() const;
  void reset();

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

uint64_t hash_of(std::span<const std::byte> bytes);
uint64_t hash_of(std::string_view text);

// Sixteen lower-case hexadecimal digits.
inline constexpr size_t kHexDigits = 16;
std::string to_hex(uint64_t value);
std::optional<uint64_t> from_hex(std::string_view text);

}  // namespace zerorun
