#pragma once

#include <map>
#include <string>
#include <string_view>

#include "config/key_table.h"
#include "config/problems.h"

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

// Looks up every key of the tree and checks its value alone. Unknown keys, keys given under two
// names, and wrong values become problems. The result points into `root`, where values are brought
// into the table's spelling.
GivenKeys check_keys(const KeyTable& table, JsonNode& root, ConfigProblems& problems);

// A key's value when it is valid and neither "auto" nor null; else null.
const JsonNode* given_value(const GivenKey& key);
const JsonNode* given_value(const GivenKeys& keys, std::string_view pointer);

}  // namespace zerorun
