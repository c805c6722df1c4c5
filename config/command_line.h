#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "zerorun/device.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

// The command lines of the launcher, the tools and train share these checks and this form of help.
namespace zerorun {

// "--num-gpus=a-b" -> "--num_gpus=a-b"; what is no option stays.
std::string with_underscores(const std::string& argument);

// Makes the app's --help, and that of subcommands added later, plain: one name and a word for the
// value of each option, defaults in words, lines of at most 100 columns.
void use_plain_help(CLI::App& app);

// These give an option a check of its value, and the word that its help shows for it.
CLI::Option* takes_integer(CLI::Option* option, const std::string& word, int64_t low,
                           int64_t high = std::numeric_limits<int64_t>::max());
CLI::Option* takes_number(CLI::Option* option, const std::string& word, double low, double high);
// Any text but the empty one.
CLI::Option* takes_text(CLI::Option* option, const std::string& word);
CLI::Option* takes_one_of(CLI::Option* option, const std::vector<std::string>& choices);
// The choices of such an option; of others nothing.
std::vector<std::string> choices_of(const CLI::Option& option);

// --accelerator auto|cpu|cuda.
CLI::Option* add_accelerator(CLI::App& app, Accelerator& accelerator);

// Throws ConfigError that names the nearest option of the app, or `help`, the command that lists
// them.
[[noreturn]] void fail_unknown_option(const CLI::App& app, const std::string& given,
                                      const std::string& help);

}  // namespace zerorun
