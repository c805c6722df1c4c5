#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files/file.h"
#include "zerorun/error.h"

namespace zerorun::train {

// The tokens of all data files as one sequence, in the order of the paths. Each byte of a text file
// is a token; a .bin file has 16-bit tokens (docs/data_format.md).
class Corpus {
 public:
  // `paths` are files and folders. All files below a folder are read in the order of their names,
  // except hidden files and those that are neither text nor tokens. Throws ConfigError or IoError
  // that names the path if there is nothing to read, a .bin file is damaged, or text and tokens are
  // mixed.
  explicit Corpus(const std::vector<std::string>& paths);

  int64_t size() const { return size_; }
  int64_t file_count() const { return std::ssize(segments_); }
  // Size of the vocabulary: 256 for text, that of the header for .bin files.
  int64_t vocabulary() const { return vocabulary_; }
  bool is_text() const { return is_text_; }
  // Returns a hash of the content, independent of paths: of all tokens if there are up to 64 Mi,
  // else of the number of tokens and of evenly spaced pieces.
  uint64_t hash() const;  // reads the data on the first call; not thread-safe

  // Reads tokens [begin, begin + out.size()). Throws IoError for a token outside the vocabulary.
  void read(int64_t begin, std::span<int32_t> out) const;

 private:
  struct Segment {
    std::string path;
    MappedFile file;
    int64_t begin = 0;  // position of its first token in the corpus
    int64_t size = 0;   // in tokens
  };
  // A file that need not be data is left out unless it is text or tokens.
  void add(const std::string& path, bool must_be_data);
  void add_tokens(const std::string& path, MappedFile file);
  void add_segment(const std::string& path, MappedFile file, int64_t size, bool is_text,
                   int64_t vocabulary);
  // Calls body(segment, offset, count) for the parts of tokens [begin, begin + count).
  template <typename Body>
  void for_segments(int64_t begin, int64_t count, const Body& body) const;
  size_t nbytes_of(int64_t tokens) const {
    return static_cast<size_t>(tokens) * (is_text_ ? 1 : sizeof(uint16_t));
  }

  std::vector<Segment> segments_;  // none is empty
  int64_t size_ = 0;
  mutable std::optional<uint64_t> hash_;
  int64_t vocabulary_ = 256;
  bool is_text_ = true;
};

// The text to train on if no data is given: the source of Python's standard library, or common
// licences.
struct DefaultText {
  std::vector<std::string> paths;
  std::string description;
  std::string prompt = "\n";  // prompt for generating such text
};
// Throws ConfigError that names the searched folders. `home` may be empty.
DefaultText find_default_text(const std::string& home);

}  // namespace zerorun::train
