#include "launcher/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "core/check.h"
#include "launcher/process.h"

namespace zerorun {

namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    fail<ConfigError>("--master_addr '{}' does not resolve: {}", host, gai_strerror(error));
  }
  return {found, &freeaddrinfo};
}

uint16_t port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address, sizeof(v6));
    return ntohs(v6.sin6_port);
  }
  sockaddr_in v4{};
  std::memcpy(&v4, &address, sizeof(v4));
  return ntohs(v4.sin_port);
}

}  // namespace

uint16_t choose_port(const std::string& host, uint16_t port) {
  const AddressList addresses = resolve(host, port);
  const FileDescriptor listener(
      socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC, addresses->ai_protocol));
  if (!listener) {
    fail<IoError>("cannot open a socket for {}: {}", host, std::strerror(errno));
  }
  // As rank 0's listener does: connections of an earlier job in TIME_WAIT do not count as busy.
  const int reuse = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  if (bind(listener.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(listener.get(), 1) != 0) {
    if (errno == EADDRINUSE) {
      fail<ConfigError>(
          "--master_port {}: the port is in use on {}; leave the option out for a free port", port,
          host);
    }
    if (errno == EADDRNOTAVAIL) {
      fail<ConfigError>("--master_addr '{}' is not an address of this host", host);
    }
    fail<ConfigError>("cannot listen on {}:{}: {}", host, port, std::strerror(errno));
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    fail<IoError>("cannot read the port bound on {}: {}", host, std::strerror(errno));
  }
  return port_of(bound);
}

}  // namespace zerorun
