#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace zerorun {

// Decodes URL-safe base64 (RFC 4648, section 5), with or without padding. Returns nullopt for other
// text.
std::optional<std::string> decode_base64url(std::string_view text);

}  // namespace zerorun
