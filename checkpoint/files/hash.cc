#include "checkpoint/files/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>
#include <new>
#include <system_error>

namespace zerorun {

void Hash::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Hash::Hash() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  reset();
}

void Hash::reset() { XXH3_64bits_reset(state_.get()); }

void Hash::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

uint64_t Hash::value() const { return XXH3_64bits_digest(state_.get()); }

uint64_t hash_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t hash_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::string to_hex(uint64_t value) { return fmt::format("{:016x}", value); }

std::optional<uint64_t> from_hex(std::string_view text) {
  if (text.size() != kHexDigits || text.find_first_not_of("0123456789abcdef") != text.npos) {
    return std::nullopt;
  }
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

}  // namespace zerorun
