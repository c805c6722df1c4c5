#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/json/problems.h"
#include "config/json/reader.h"
#include "config/keys/key_table.h"

namespace zerorun {

// A key of a file: what the table says about it, and what the file does.
struct GivenKey {
  const KeySpec* spec = nullptr;
  const JsonNode* node = nullptr;
  std::string pointer;            // as written; differs from the table's under an alias
  bool is_valid = true;           // the value suits the key
  bool is_boolean_block = false;  // written as true or false, the older form of a block
};

// The keys of one file, by the table's pointer. Those whose value is "auto" are included.
using GivenKeys = std::map<std::string_view, GivenKey>;

// Checks every key by itself: first its name and its value, then what the key's status says about
// asking for it to that reader, then whether the type of optimizer or scheduler takes it. What is
// wrong becomes a problem; deprecated names and keys without effect become warnings. The result
// points into `root`, where values are brought into the table's spelling.
GivenKeys check_keys(const KeyTable& table, JsonNode& root, ConfigProblems& problems,
                     std::vector<std::string>& warnings, ConfigReader reader = ConfigReader::cpp);

// A key's value when it is valid and neither "auto" nor null; else null.
const JsonNode* given_value(const GivenKey& key);
const JsonNode* given_value(const GivenKeys& keys, std::string_view pointer);

// The type of optimizer or scheduler that decides about a key: "" when there is none, nullopt when
// the file names one that does not exist.
std::optional<std::string_view> type_for(const KeyTable& table, const GivenKeys& keys,
                                         const KeySpec& spec);

// Says what suits a key: "an integer from 0 to 3", `"none", "cpu" or "nvme"`.
std::string expected_value(const KeySpec& spec);

// Says what is wrong with a value ("got ..., expected ..."), or nothing. Brings strings that must
// be one of some choices into the table's spelling, and 0 and 1 for booleans.
std::optional<std::string> check_value(const KeySpec& spec, JsonNode& node);

// True when the value is "auto", which means "not given" for keys and for blocks inside a block.
bool is_auto(const KeySpec& spec, const JsonNode& node);

}  // namespace zerorun
