#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/parse_number.h"
#include "core/printable.h"
#include "launcher/hosts/cluster.h"
#include "launcher/ranks/resources.h"
#include "launcher/words.h"
#include "os/text_file.h"

namespace zerorun {

namespace {

constexpr uint64_t kMaxHostfile = uint64_t{16} << 20;

// One line of a hostfile, for messages.
struct HostLine {
  const std::string& file;
  size_t number;
  std::string_view text;

  [[noreturn]] void refuse(const std::string& why) const {
    fail<ConfigError>(
        "hostfile {}:{}: {} in '{}'; expected HOST, HOST:N or HOST slots=N, where HOST may be "
        "USER@HOST",
        file, number, why, printable(trim(text)));
  }
};

int parse_count(const HostLine& line, std::string_view word, std::string_view value) {
  const std::optional<int> count = parse_number(value);
  if (!count || *count < 1 || *count > kMaxRanksPerHost) {
    line.refuse(fmt::format("'{}' is not a number of slots from 1 to {}", printable(word),
                            kMaxRanksPerHost));
  }
  return *count;
}

// Splits "host:4" and "[fe80::1]:4"; an address of IPv6 without brackets has several colons.
std::optional<int> take_count(const HostLine& line, std::string_view word, std::string_view& host) {
  host = word;
  std::string_view count;
  if (word.starts_with('[')) {
    const size_t end = word.find(']');
    if (end == std::string_view::npos) line.refuse("'[' without ']'");
    host = word.substr(1, end - 1);
    count = word.substr(end + 1);
    if (count.empty()) return std::nullopt;
    if (!count.starts_with(':')) line.refuse(fmt::format("'{}'", printable(word)));
  } else if (std::ranges::count(word, ':') == 1) {
    host = word.substr(0, word.find(':'));
    count = word.substr(word.find(':'));
  } else {
    return std::nullopt;
  }
  return parse_count(line, word, count.substr(1));
}

// Takes "user@" off the front of a word.
std::string take_user(const HostLine& line, std::string_view& word) {
  const size_t at = word.find('@');
  if (at == std::string_view::npos) return {};
  const std::string_view user = word.substr(0, at);
  if (!is_host_name(user) || user.find_first_of(":%") != std::string_view::npos) {
    line.refuse(fmt::format("'{}' is not the name of a user", printable(user)));
  }
  word.remove_prefix(at + 1);
  return std::string(user);
}

bool is_ipv6_address(std::string_view name) {
  in6_addr address{};
  const std::string without_zone(name.substr(0, name.find('%')));
  return inet_pton(AF_INET6, without_zone.c_str(), &address) == 1;
}

HostSlots parse_line(const HostLine& line, const std::vector<std::string_view>& words) {
  std::string_view first = words.front();
  std::string user = take_user(line, first);
  std::string_view host;
  std::optional<int> slots = take_count(line, first, host);
  if (!is_host_name(host)) {
    line.refuse(fmt::format("'{}' is neither the name nor the address of a host", printable(host)));
  }
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const std::string_view key = word.substr(0, word.find('='));
    const std::string_view value = word.substr(std::min(key.size() + 1, word.size()));
    if (key == "slots") {
      if (slots) line.refuse("the slots are given twice");
      slots = parse_count(line, word, value);
    } else if (key == "max_slots" || key == "max-slots") {
      parse_count(line, word, value);  // MPI's bound for more ranks than slots, which we never run
    } else {
      line.refuse(fmt::format("unknown word '{}'", printable(word)));
    }
  }
  return {
      .host = std::string(host), .slots = first_slots(slots.value_or(0)), .user = std::move(user)};
}

}  // namespace

std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& name) {
  std::vector<HostSlots> hosts;
  std::map<std::string, size_t> lines;
  size_t number = 0;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // some editors begin a file with it
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (std::string_view content : split(text, '\n')) {
    ++number;
    content = content.substr(0, content.find('#'));
    const std::vector<std::string_view> words = split_words(content);
    if (words.empty()) continue;
    const HostLine line = {name, number, content};
    HostSlots host = parse_line(line, words);
    const auto [first, is_new] = lines.emplace(host.host, number);
    if (!is_new) {
      line.refuse(fmt::format("host '{}' is there already, in line {},", host.host, first->second));
    }
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) {
    fail<ConfigError>("hostfile {} names no host; expected lines as HOST slots=N", name);
  }
  return hosts;
}

std::optional<std::vector<HostSlots>> read_hostfile(const std::filesystem::path& path) {
  std::string text;
  const int error = try_read_text(path, kMaxHostfile, text);
  if (error == ENOENT) return std::nullopt;
  if (error != 0) fail<ConfigError>("hostfile {}: {}", path.string(), std::strerror(error));
  return parse_hostfile(text, path.string());
}

bool is_host_name(std::string_view name) {
  constexpr size_t kMaxName = 255;
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:%";
  return !name.empty() && name.size() <= kMaxName && name.front() != '-' &&
         name.find_first_not_of(kLetters) == std::string_view::npos &&
         (name.find(':') == std::string_view::npos || is_ipv6_address(name));
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

std::vector<int> first_slots(int count) {
  std::vector<int> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

}  // namespace zerorun
