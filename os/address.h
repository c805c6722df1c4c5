#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "os/file_descriptor.h"

namespace zerorun {

// The addresses of `host` with a port, in the order in which a caller should try them; at least
// one. Throws CommError.
using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
AddressList look_up(const std::string& host, uint16_t port);
// The address of a socket, or that of its peer; nothing if it has none.
std::optional<sockaddr_storage> address_of(int socket);
std::optional<sockaddr_storage> address_of_peer(int socket);

// True for a loopback address of IPv4 or IPv6.
bool is_loopback(const sockaddr_storage& address);

// True for loopback addresses and for "localhost". Other names are not resolved, because a host may
// resolve its own name to a loopback address that no other host could use.
bool is_loopback(const std::string& host);

// True if this host resolves `host` to a loopback address. Throws CommError if it has no address.
bool resolves_to_loopback(const std::string& host);

// True if `host`, a name or address, is this machine. False for a name that cannot be resolved.
bool is_own_address(const std::string& host);

// The addresses of this host that others may reach, with their interfaces: "10.0.0.7 (eth0)".
// Neither loopback nor link-local addresses, nor those of interfaces that are down. The first is
// the likeliest: see likeliest_first.
struct OwnAddress {
  std::string address;
  std::string interface;

  bool operator==(const OwnAddress&) const = default;
};
std::vector<OwnAddress> own_addresses();
// Orders addresses: first those of `ways_out`, from which this host reaches the rest of the world;
// last those of the bridges of Docker and libvirt, which only containers of this host reach.
void likeliest_first(std::vector<OwnAddress>& own, const std::vector<std::string>& ways_out);
// The same as one text; "none" if there is none.
std::string list_own_addresses();

// The numeric text of an address.
std::string text_of(const addrinfo& address);

// Returns the wildcard address (all addresses of this host) of the address family of `host`.
std::string any_address_like(const std::string& host);

// Returns the address of this host from which it reaches `host`, and at which other hosts can reach
// it. It is a loopback address only if `host` is one. Throws CommError if there is no route.
std::string own_address_towards(const std::string& host);

// Returns the numeric address of a network interface `name` of this host, or `name` itself if it is
// an address of this host. If the interface has several addresses, prefers the address family of
// `like` unless that is empty, then IPv4. Throws CommError for any other name.
std::string own_address_of(const std::string& name, const std::string& like);

// Returns the user who owns the other end of a TCP connection, if that end is on this host and
// still open. `root` replaces "/" in tests.
std::optional<uid_t> user_of_peer(const FileDescriptor& connection,
                                  const std::filesystem::path& root = "/");

}  // namespace zerorun
