#include "launcher/local_rank.h"

#include <algorithm>

#include "os/text_file.h"

namespace zerorun {

namespace {

constexpr uint64_t kMaxSource = uint64_t{16} << 20;

// True if the text after an attribute's name assigns to it.
bool is_assignment(std::string_view rest) {
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest.starts_with('=') && !rest.starts_with("==");
}

// True if the program reads args.local_rank, which its parser must have got: a field of a
// dataclass, or an option that another file declares.
bool reads_attribute(std::string_view source) {
  constexpr std::string_view kAttribute = ".local_rank";
  bool is_read = false;
  for (size_t at = source.find(kAttribute); at != std::string_view::npos;
       at = source.find(kAttribute, at + 1)) {
    const std::string_view rest = source.substr(at + kAttribute.size());
    if (is_assignment(rest)) return false;
    const bool is_whole_name = rest.find_first_of("_(abcdefghijklmnopqrstuvwxyz0123456789") != 0;
    is_read = is_read || is_whole_name;
  }
  return is_read;
}

}  // namespace

std::string_view local_rank_option(std::string_view source) {
  constexpr std::string_view kUnderscore = "--local_rank";
  constexpr std::string_view kDash = "--local-rank";
  if (source.find(kUnderscore) != std::string_view::npos) return kUnderscore;
  if (source.find(kDash) != std::string_view::npos) return kDash;
  return reads_attribute(source) ? kUnderscore : std::string_view();
}

std::string program_source(const std::string& name, bool is_module,
                           const std::filesystem::path& working_directory) {
  std::string source;
  if (!is_module) {
    if (try_read_text(working_directory / name, kMaxSource, source) != 0) source.clear();
    return source;
  }
  std::string path = name;
  std::replace(path.begin(), path.end(), '.', '/');
  for (const std::string& file : {path + ".py", path + "/__main__.py"}) {
    if (try_read_text(working_directory / file, kMaxSource, source) == 0) return source;
  }
  return {};
}

}  // namespace zerorun
