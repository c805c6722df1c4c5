#include "launcher/hosts/address.h"

#include <limits>

#include "core/check.h"
#include "core/parse_number.h"
#include "core/printable.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/words.h"

namespace zerorun {

Listener reserve_master_port(const std::string& host, uint16_t port) {
  try {
    reserve_port(host, 0);
  } catch (const CommError& error) {
    fail<ConfigError>("--master_addr: {}", error.what());
  }
  try {
    return reserve_port("127.0.0.1", port);
  } catch (const CommError& error) {
    fail<ConfigError>("--master_port {}: {}; leave the option out for a free port", port,
                      error.what());
  }
}

Listener reserve_open_port(uint16_t port) {
  try {
    return reserve_port("::", port);  // IPv4 too
  } catch (const CommError&) {
    return reserve_port("0.0.0.0", port);  // a kernel without IPv6
  }
}

Endpoint parse_endpoint(std::string_view option, const std::string& text, uint16_t port) {
  Endpoint endpoint = {.host = text, .port = port};
  std::string_view number;
  const bool bracketed = text.starts_with('[') && text.find(']') != std::string::npos;
  const size_t colon = bracketed ? text.find(']') + 1 : text.rfind(':');
  if (bracketed) endpoint.host = text.substr(1, colon - 2);
  if (bracketed ? colon < text.size() : colon != std::string::npos && text.find(':') == colon) {
    if (!bracketed) endpoint.host = text.substr(0, colon);
    number = std::string_view(text).substr(colon + 1);
    const std::optional<int> value = text[colon] == ':' ? parse_number(number) : std::nullopt;
    if (!value || *value < 0 || *value > std::numeric_limits<uint16_t>::max()) {
      fail<ConfigError>("{} '{}': expected HOST:PORT with a port from 0 to 65535", option,
                        printable(text));
    }
    endpoint.port = static_cast<uint16_t>(*value);
  }
  if (!is_host_name(endpoint.host)) {
    fail<ConfigError>("{} '{}': expected HOST:PORT, as in worker-1:29500", option, printable(text));
  }
  return endpoint;
}

}  // namespace zerorun
