#include "launcher/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <limits>
#include <memory>

#include "core/check.h"
#include "core/printable.h"
#include "launcher/hostfile.h"
#include "launcher/words.h"

namespace zerorun {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses addresses_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) found = nullptr;
  return {found, &freeaddrinfo};
}

// The address as text; empty for other families than those of IP.
std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address == nullptr) return {};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
  }
  return text.data();
}

}  // namespace

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

bool is_own_address(const std::string& host) {
  const Addresses addresses = addresses_of(host);
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(interfaces, &freeifaddrs);
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    const std::string wanted = text_of(address->ai_addr);
    if (wanted.starts_with("127.") || wanted == "::1") return true;
    for (const ifaddrs* one = interfaces; one != nullptr; one = one->ifa_next) {
      if (text_of(one->ifa_addr) == wanted && !wanted.empty()) return true;
    }
  }
  return false;
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
