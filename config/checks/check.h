#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/json/json_tree.h"
#include "config/json/reader.h"
#include "config/keys/key_table.h"

namespace zerorun {

// A key of a file, with its entry in the key table.
struct GivenKey {
  const KeySpec* spec = nullptr;
  const JsonNode* node = nullptr;
  // pointer as written in the file; differs from that of the table if an alias was used
  std::string pointer;
  bool is_valid = true;           // the value is valid for the key
  bool is_boolean_block = false;  // the block was written as true or false, its older form
};

// The keys of a file, by their pointer in the table. Keys with value "auto" are included.
using GivenKeys = std::map<std::string_view, GivenKey>;

// Checks every key by itself: its name and value, then whether its status allows the value for this
// reader, then whether the type of optimizer or scheduler has it. Errors are added to the problems;
// deprecated names and keys without effect are added to the warnings. The result points into
// `root`, in which values are changed to the spelling of the table.
GivenKeys check_keys(JsonNode& root, ConfigProblems& problems, std::vector<std::string>& warnings,
                     ConfigReader reader = ConfigReader::cpp);

// Returns the value of a key if it is valid and neither "auto" nor null; else nullptr.
const JsonNode* given_value(const GivenKey& key);
const JsonNode* given_value(const GivenKeys& keys, std::string_view pointer);
// True if the file has a value that is not valid for the key, which is reported already.
bool is_invalid(const GivenKeys& keys, std::string_view pointer);

// Returns the type of optimizer or scheduler to which a key belongs: "" if there is none, nullopt
// if the file names a type that does not exist.
std::optional<std::string_view> type_for(const GivenKeys& keys, const KeySpec& spec);

// Describes the valid values of a key: "an integer from 0 to 3", `"none", "cpu" or "nvme"`.
std::string expected_value(const KeySpec& spec);

// Returns what is wrong with a value ("got ..., expected ..."), or nullopt. Changes strings that
// are one of some choices to the spelling of the table, and 0 and 1 to booleans.
std::optional<std::string> check_value(const KeySpec& spec, JsonNode& node);

// True if the value is "auto" and this means "not given": for keys and for blocks inside a block.
bool is_auto(const KeySpec& spec, const JsonNode& node);

}  // namespace zerorun
