#include "train/data/corpus.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "checkpoint/files/file.h"
#include "core/check.h"

namespace zerorun::train {

namespace {

namespace fs = std::filesystem;

// docs/data_format.md
struct TokenHeader {
  char magic[8];
  uint32_t version;
  uint32_t vocabulary;
  uint64_t count;
  uint64_t reserved;
};
static_assert(sizeof(TokenHeader) == 32);
constexpr std::string_view kMagic = "ZRTOKENS";
constexpr uint32_t kVersion = 1;
constexpr int64_t kBytes = 256;
constexpr int64_t kMaxVocabulary = 65536;
constexpr size_t kSniffed = 8192;  // bytes that are inspected to distinguish text from other files
// In tokens, of the hash.
constexpr int64_t kHashedWhole = int64_t{64} << 20;
constexpr int64_t kHashedPiece = int64_t{64} << 10;
constexpr int64_t kHashedPieces = 256;

bool is_token_file(const MappedFile& file) {
  return file.bytes().size() >= kMagic.size() &&
         std::memcmp(file.bytes().data(), kMagic.data(), kMagic.size()) == 0;
}

bool is_text_file(const MappedFile& file) {
  const auto head = file.bytes().first(std::min(kSniffed, file.bytes().size()));
  return std::find(head.begin(), head.end(), std::byte{0}) == head.end();
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// All regular files below a folder, sorted.
std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(error) && !error) {
      files.push_back(entry->path().string());
    }
    error.clear();
  }
  if (error) fail<IoError>("cannot read the folder {}: {}", folder, error.message());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Corpus::Corpus(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      for (const std::string& file : files_below(path)) add(file, /*must_be_data=*/false);
    } else if (fs::is_regular_file(path, error)) {
      add(path, /*must_be_data=*/true);
    } else {
      fail<ConfigError>("--data: cannot open {}: {}", path,
                        error ? error.message() : "expected a file or a folder");
    }
  }
  if (size_ == 0) {
    fail<ConfigError>("the data are empty: no text and no tokens in {}{}",
                      paths.empty() ? "an empty list of paths" : paths.front(),
                      paths.size() > 1 ? " and the other paths" : "");
  }
}

void Corpus::add(const std::string& path, bool must_be_data) {
  MappedFile file(path);
  if (path.ends_with(".bin") || is_token_file(file)) {
    add_tokens(path, std::move(file));
  } else if (must_be_data || is_text_file(file)) {
    const auto size = static_cast<int64_t>(file.bytes().size());
    add_segment(path, std::move(file), size, /*is_text=*/true, kBytes);
  }
}

void Corpus::add_tokens(const std::string& path, MappedFile file) {
  TokenHeader header = {};
  if (!is_token_file(file) || file.bytes().size() < sizeof(header)) {
    fail<ConfigError>(
        "{}: a .bin file starts with the {}-byte header of docs/data_format.md ('{}', version, "
        "vocabulary, count); rename the file if it is text",
        path, sizeof(header), kMagic);
  }
  std::memcpy(&header, file.bytes().data(), sizeof(header));
  const size_t room = (file.bytes().size() - sizeof(header)) / sizeof(uint16_t);
  if (header.version != kVersion) {
    fail<ConfigError>("{}: version {} of the token format; this program reads version {}", path,
                      header.version, kVersion);
  }
  if (header.vocabulary < 1 || header.vocabulary > kMaxVocabulary) {
    fail<ConfigError>("{}: the header says a vocabulary of {}: expected 1 to {}", path,
                      header.vocabulary, kMaxVocabulary);
  }
  if (header.count != room || (file.bytes().size() - sizeof(header)) % sizeof(uint16_t) != 0) {
    fail<ConfigError>("{}: the header says {} tokens, the file of {} bytes holds {}: truncated?",
                      path, header.count, file.bytes().size(), room);
  }
  add_segment(path, std::move(file), static_cast<int64_t>(header.count), /*is_text=*/false,
              header.vocabulary);
}

void Corpus::add_segment(const std::string& path, MappedFile file, int64_t size, bool is_text,
                         int64_t vocabulary) {
  if (size == 0) return;
  if (segments_.empty()) {
    is_text_ = is_text;
    vocabulary_ = vocabulary;
  } else if (is_text != is_text_) {
    fail<ConfigError>("the data mix text and tokens: {} is {}, {} is {}", segments_.front().path,
                      is_text_ ? "text" : "tokens", path, is_text ? "text" : "tokens");
  } else if (vocabulary != vocabulary_) {
    fail<ConfigError>("the data mix vocabularies: {} has {} tokens, {} has {}",
                      segments_.front().path, vocabulary_, path, vocabulary);
  }
  segments_.push_back({path, std::move(file), size_, size});
  size_ += size;
}

template <typename Body>
void Corpus::for_segments(int64_t begin, int64_t count, const Body& body) const {
  const auto behind = std::ranges::upper_bound(segments_, begin, {}, &Segment::begin);
  for (auto segment = behind - 1; count > 0; ++segment) {
    const int64_t offset = begin - segment->begin;
    const int64_t here = std::min(segment->size - offset, count);
    body(*segment, offset, here);
    begin += here;
    count -= here;
  }
}

void Corpus::read(int64_t begin, std::span<int32_t> out) const {
  ZR_CHECK(begin >= 0 && begin + std::ssize(out) <= size_, "tokens {} to {} of {}", begin,
           begin + std::ssize(out), size_);
  auto to = out.begin();
  for_segments(begin, std::ssize(out), [&](const Segment& segment, int64_t offset, int64_t count) {
    const std::byte* const data = segment.file.bytes().last(nbytes_of(segment.size)).data();
    for (int64_t position = offset; position < offset + count; ++position) {
      uint16_t token = 0;
      if (is_text_) {
        token = std::to_integer<uint16_t>(data[position]);
      } else {
        std::memcpy(&token, data + nbytes_of(position), sizeof(token));
      }
      if (token >= vocabulary_) {
        fail<IoError>("{}: token {} at position {} is outside the vocabulary of {}", segment.path,
                      token, position, vocabulary_);
      }
      *to++ = token;
    }
  });
}

uint64_t Corpus::hash() const {
  if (hash_) return *hash_;
  Hash hash;
  hash.update(std::as_bytes(std::span(&size_, 1)));
  const auto add = [&](const Segment& segment, int64_t offset, int64_t count) {
    const auto tokens = segment.file.bytes().last(nbytes_of(segment.size));
    hash.update(tokens.subspan(nbytes_of(offset), nbytes_of(count)));
  };
  if (size_ <= kHashedWhole) {
    for_segments(0, size_, add);
  } else {
    for (int64_t piece = 0; piece < kHashedPieces; ++piece) {
      for_segments((size_ - kHashedPiece) * piece / (kHashedPieces - 1), kHashedPiece, add);
    }
  }
  hash_ = hash.value();
  return *hash_;
}

DefaultText find_default_text(const std::string& home) {
  // Folders that may contain python3.N with the standard library (recognised by os.py).
  std::vector<fs::path> places = {"/usr/lib", "/usr/local/lib"};
  std::error_code error;
  if (!home.empty()) {
    for (const auto& version : fs::directory_iterator(home + "/.pyenv/versions", error)) {
      places.push_back(version.path() / "lib");
    }
  }
  std::vector<std::string> libraries;
  for (const fs::path& place : places) {
    for (const auto& entry : fs::directory_iterator(place, error)) {
      const bool named = entry.path().filename().string().starts_with("python3");
      if (named && fs::exists(entry.path() / "os.py", error)) {
        libraries.push_back(entry.path().string());
      }
    }
  }
  std::sort(libraries.begin(), libraries.end());
  if (!libraries.empty()) {
    DefaultText text{{}, "the Python sources in " + libraries.back(), "\ndef "};
    for (const std::string& path : files_below(libraries.back())) {
      if (!path.ends_with(".py") || path.find("-packages/") != std::string::npos) continue;
      text.paths.push_back(path);
    }
    if (!text.paths.empty()) return text;
  }
  const std::string licences = "/usr/share/common-licenses";
  if (fs::is_directory(licences, error)) return {{licences}, "the licences in " + licences};
  fail<ConfigError>(
      "no text to train on: neither Python's standard library below /usr/lib, /usr/local/lib and "
      "~/.pyenv nor {}; give text with --data PATH",
      licences);
}

}  // namespace zerorun::train
