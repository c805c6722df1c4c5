#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace zerorun {

// The bytes of URL-safe base64 (RFC 4648, section 5), with or without padding; none when the text
// is something else.
std::optional<std::string> decode_base64url(std::string_view text);

}  // namespace zerorun
