#include "os/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <span>

#include "core/check.h"
#include "core/joined.h"

namespace zerorun {

namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// `get`: getsockname or getpeername.
template <typename Get>
std::optional<sockaddr_storage> ask(const Get& get, int socket) {
  Address found;
  return get(socket, found.get(), &found.size) == 0 ? std::optional(found.storage) : std::nullopt;
}

constexpr uint16_t kDiscardPort = 9;  // any: nothing is sent there

Address address_in(const addrinfo& found) {
  Address address;
  std::memcpy(&address.storage, found.ai_addr, found.ai_addrlen);
  address.size = found.ai_addrlen;
  return address;
}

Address first_address_of(const std::string& host) {
  return address_in(*look_up(host, kDiscardPort));
}

// Connecting a datagram socket sends nothing; it only chooses the way.
Address source_towards(const std::string& host) {
  const Address target = first_address_of(host);
  const FileDescriptor socket(::socket(target.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Address source;
  if (!socket || ::connect(socket.get(), target.get(), target.size) != 0 ||
      getsockname(socket.get(), source.get(), &source.size) != 0) {
    fail<CommError>("this host has no route to '{}': {}", host, std::strerror(errno));
  }
  return source;
}

std::string text_of(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    fail<CommError>("got an address of family {}, expected IPv4 or IPv6", address->sa_family);
  }
  return text.data();
}

std::string text_of(const Address& address) { return text_of(address.get(), address.size); }

socklen_t size_of(int family) {
  return family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

bool is_link_local(const sockaddr& address) {
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

using Interfaces = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;
Interfaces interfaces() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) found = nullptr;
  return {found, &freeifaddrs};
}

// An address of the interface and of the family, 0 for any. Other hosts do not reach link-local
// addresses of IPv6 by their numbers alone.
std::optional<Address> address_of_interface(const std::string& name, int family) {
  const Interfaces found = interfaces();
  for (const int one : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = found.get(); entry != nullptr; entry = entry->ifa_next) {
      if (name != entry->ifa_name || entry->ifa_addr == nullptr) continue;
      if (entry->ifa_addr->sa_family != one || (family != 0 && one != family)) continue;
      if (is_link_local(*entry->ifa_addr)) continue;
      Address address;
      address.size = size_of(one);
      std::memcpy(&address.storage, entry->ifa_addr, address.size);
      return address;
    }
  }
  return std::nullopt;
}

bool same_number(const sockaddr* one, const sockaddr* other) {
  if (one == nullptr || one->sa_family != other->sa_family) return false;
  if (one->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(one)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(other)->sin_addr.s_addr;
  }
  return one->sa_family == AF_INET6 &&
         IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6*>(one)->sin6_addr,
                            &reinterpret_cast<const sockaddr_in6*>(other)->sin6_addr);
}

// The first address of `host` that is this machine's. Names that nobody knows have none.
std::optional<Address> own_address_among(const std::string& host) try {
  const Interfaces found = interfaces();
  const AddressList addresses = look_up(host, kDiscardPort);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    const Address address = address_in(*one);
    if (is_loopback(address.storage)) return address;
    for (const ifaddrs* entry = found.get(); entry != nullptr; entry = entry->ifa_next) {
      if (same_number(entry->ifa_addr, address.get())) return address;
    }
  }
  return std::nullopt;
} catch (const CommError&) {
  return std::nullopt;
}

// Where the default routes begin: the way to addresses that RFC 5737 and RFC 3849 keep for
// documentation. Empty on a network without a way out.
std::vector<std::string> addresses_of_default_routes() {
  std::vector<std::string> found;
  for (const char* elsewhere : {"192.0.2.1", "2001:db8::1"}) {
    try {
      found.push_back(text_of(source_towards(elsewhere)));
    } catch (const CommError&) {
      continue;
    }
  }
  return found;
}

bool is_of_containers(const OwnAddress& own) {
  constexpr std::array kPrefixes = {"docker", "br-", "veth", "virbr"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](const char* prefix) { return own.interface.starts_with(prefix); });
}

// As the kernel writes it: each four bytes of the address as one number, then the port.
std::string proc_text_of(const sockaddr_storage& address) {
  const bool is_v4 = address.ss_family == AF_INET;
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  std::array<uint32_t, 4> words{};
  if (is_v4) {
    words[0] = v4.sin_addr.s_addr;
  } else {
    std::memcpy(words.data(), &v6.sin6_addr, sizeof(v6.sin6_addr));
  }
  std::string text;
  for (const uint32_t word : std::span(words).first(is_v4 ? 1 : 4)) {
    text += fmt::format("{:08X}", word);
  }
  return text + fmt::format(":{:04X}", ntohs(is_v4 ? v4.sin_port : v6.sin6_port));
}

}  // namespace

AddressList look_up(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    fail<CommError>("cannot find the address of host '{}': {}", host, gai_strerror(error));
  }
  return {found, &freeaddrinfo};
}

std::optional<sockaddr_storage> address_of(int socket) { return ask(getsockname, socket); }

std::optional<sockaddr_storage> address_of_peer(int socket) { return ask(getpeername, socket); }

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  return ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1";
}

bool resolves_to_loopback(const std::string& host) {
  return is_loopback(first_address_of(host).storage);
}

bool is_own_address(const std::string& host) { return own_address_among(host).has_value(); }

std::vector<OwnAddress> own_addresses() {
  std::vector<OwnAddress> own;
  const Interfaces found = interfaces();
  for (const ifaddrs* entry = found.get(); entry != nullptr; entry = entry->ifa_next) {
    const sockaddr* address = entry->ifa_addr;
    if (address == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if ((entry->ifa_flags & IFF_LOOPBACK) != 0 || is_link_local(*address)) continue;
    if (address->sa_family != AF_INET && address->sa_family != AF_INET6) continue;
    own.push_back({text_of(address, size_of(address->sa_family)), entry->ifa_name});
  }
  likeliest_first(own, addresses_of_default_routes());
  return own;
}

void likeliest_first(std::vector<OwnAddress>& own, const std::vector<std::string>& ways_out) {
  const auto place = [&ways_out](const OwnAddress& one) {
    if (std::find(ways_out.begin(), ways_out.end(), one.address) != ways_out.end()) return 0;
    return is_of_containers(one) ? 2 : 1;
  };
  std::stable_sort(own.begin(), own.end(), [&place](const OwnAddress& a, const OwnAddress& b) {
    return place(a) < place(b);
  });
}

std::string list_own_addresses() {
  const std::string text = joined(own_addresses(), ", ", [](const OwnAddress& own) {
    return fmt::format("{} ({})", own.address, own.interface);
  });
  return text.empty() ? "none" : text;
}

std::string text_of(const addrinfo& address) {
  return text_of(address.ai_addr, address.ai_addrlen);
}

std::string any_address_like(const std::string& host) {
  return first_address_of(host).storage.ss_family == AF_INET6 ? "::" : "0.0.0.0";
}

std::string own_address_towards(const std::string& host) {
  const Address source = source_towards(host);
  if (!is_loopback(source.storage) || is_loopback(host)) return text_of(source);
  // Debian gives a host's own name an address of the loopback. What others reach is, on most hosts,
  // where the way to everything else begins.
  const std::vector<std::string> ways_out = addresses_of_default_routes();
  if (!ways_out.empty()) return ways_out.front();
  const std::vector<OwnAddress> own = own_addresses();
  if (own.empty())
    fail<CommError>("'{}' is the loopback, and this host has no other address", host);
  return own.front().address;
}

std::string own_address_of(const std::string& name, const std::string& like) {
  if (if_nametoindex(name.c_str()) != 0) {
    const int family = like.empty() ? 0 : first_address_of(like).storage.ss_family;
    std::optional<Address> address = address_of_interface(name, family);
    if (!address) address = address_of_interface(name, 0);
    if (!address) fail<CommError>("network interface '{}' has no address", name);
    return text_of(*address);
  }
  const std::optional<Address> address = own_address_among(name);
  if (!address) {
    fail<CommError>("'{}' is neither a network interface nor an address of this host", name);
  }
  return text_of(*address);
}

// /proc/net/tcp (proc(5)): a title, then "N: LOCAL REMOTE STATE TX:RX TIMER:WHEN RETRIES UID ...".
std::optional<uid_t> user_of_peer(const FileDescriptor& connection,
                                  const std::filesystem::path& root) {
  const auto own = address_of(connection.get());
  const auto peer = address_of_peer(connection.get());
  if (!own || !peer) return std::nullopt;
  const std::string local = proc_text_of(*peer);  // seen from the other end
  const std::string remote = proc_text_of(*own);
  std::ifstream file(root / (own->ss_family == AF_INET ? "proc/net/tcp" : "proc/net/tcp6"));
  file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  std::string number;
  std::string from;
  std::string to;
  std::string state;
  std::string skipped;
  uid_t user = 0;
  while (file >> number >> from >> to >> state >> skipped >> skipped >> skipped >> user) {
    // The kernel shows a connection that its program has closed as root's.
    constexpr std::string_view kEstablished = "01";
    if (from == local && to == remote && state == kEstablished) return user;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

}  // namespace zerorun
