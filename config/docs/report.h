#pragma once

#include <string>

#include "zerorun/config.h"

namespace zerorun {

// The texts that `zerorun config check|show|schema|docs` print.

// Summarizes a valid file and how zerorun interprets it. Throws ConfigError that lists all problems
// if the file is invalid or its batch sizes do not match any number of ranks.
std::string check_report(const std::string& path);

// Returns the resolved value of every setting for a run with these facts, as JSON that parse_config
// reads. Comments mark values that differ from the default and those that were "auto". Throws
// ConfigError if the batch sizes do not match the number of ranks.
std::string show_config(ParsedConfig parsed, const RunFacts& facts);

// Returns the batch size of the file's section elasticity, the numbers of ranks that divide it, and
// the batch sizes for `world_size` ranks (0: omitted). Throws ConfigError if the section is not
// enabled or does not allow this number of ranks.
std::string elasticity_report(const std::string& path, int world_size);

// Returns the JSON Schema (draft 2020-12) of a ds_config.json, generated from the key table.
std::string json_schema();

// Returns docs/config.md, generated from the key table.
std::string config_markdown();

}  // namespace zerorun
