#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace zerorun {

// The Python programs that get --local_rank=N, as DeepSpeed's launcher passes it; torchrun's does
// not. automatic: those whose source mentions it.
enum class LocalRank { automatic, always, never };

// The option in the spelling in which a Python program takes it: "--local_rank" or "--local-rank".
// Empty where its source mentions none, or only an attribute that it sets by itself.
std::string_view local_rank_option(std::string_view source);

// The source of a script, or of a module below the working directory; empty where there is none.
std::string program_source(const std::string& name, bool is_module,
                           const std::filesystem::path& working_directory);

}  // namespace zerorun
