#pragma once

#include <string>

#include "zerorun/config.h"

namespace zerorun {

// Texts about configurations: what `zerorun config check|show|schema|docs` print.

// Lists what a valid file asks for and what zerorun makes of it. Throws ConfigError
// listing every problem when the file is not valid, or when its batch sizes suit no number of
// ranks.
std::string check_report(const std::string& path);

// Every setting in effect for a run with these facts, as JSON that parse_config reads. Comments
// mark what differs from the default, and what "auto" has become. Throws ConfigError when the batch
// sizes do not suit the number of ranks.
std::string show_config(ParsedConfig parsed, const RunFacts& facts);

// The batch that the file's section elasticity makes and the numbers of ranks that it suits, and
// the batch sizes of `world_size` ranks; 0: not known. Throws ConfigError where that is not
// enabled, or where they do not suit it.
std::string elasticity_report(const std::string& path, int world_size);

// JSON Schema (draft 2020-12) of a ds_config.json, from the key table.
std::string json_schema();

// docs/config.md, from the key table.
std::string config_markdown();

}  // namespace zerorun
