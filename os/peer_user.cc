#include "os/peer_user.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <fstream>
#include <limits>
#include <span>
#include <string>

#include "os/address.h"

namespace zerorun {

namespace {

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
