#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace zerorun {

// Which Python programs get the argument --local_rank=N. DeepSpeed's launcher passes it always,
// torchrun never. automatic: to programs whose source mentions it.
enum class LocalRank { automatic, always, never };

// The spelling of the option that a Python program takes: "--local_rank" or "--local-rank". Empty
// if its source does not mention the option, or mentions only an attribute that it sets itself.
std::string_view local_rank_option(std::string_view source);

// The source of a script, or of a module below the working directory; empty if there is none.
std::string program_source(const std::string& name, bool is_module,
                           const std::filesystem::path& working_directory);

}  // namespace zerorun
