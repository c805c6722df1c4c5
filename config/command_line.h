#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "zerorun/device.h"

// Checks and help format that the command lines of the launcher, the tools and train share.
namespace zerorun {

// Replaces - by _ in the name of an option: "--num-gpus=a-b" -> "--num_gpus=a-b". Other arguments
// are returned unchanged.
std::string with_underscores(const std::string& argument);

// Sets the help format of the app and of subcommands that are added later: each option has one name
// and a word for its value, defaults are in the text, and lines have at most 100 columns.
void use_plain_help(CLI::App& app);

// These functions add a check of an option's value and set the word that its help shows for the
// value.
CLI::Option* takes_integer(CLI::Option* option, const std::string& word, int64_t low,
                           int64_t high = std::numeric_limits<int64_t>::max());
CLI::Option* takes_number(CLI::Option* option, const std::string& word, double low, double high);
// Accepts any text except the empty one.
CLI::Option* takes_text(CLI::Option* option, const std::string& word);
CLI::Option* takes_one_of(CLI::Option* option, const std::vector<std::string>& choices);
// Returns the choices of an option of takes_one_of; empty for other options.
std::vector<std::string> choices_of(const CLI::Option& option);

// Adds options to an app, each with a check of its value, the word that the help shows for the
// value, and its meaning.
struct AppOptions {
  explicit AppOptions(CLI::App& to) : app(to) {}
  // `group`: in which the help shows them.
  AppOptions(CLI::App& to, const std::string& group) : app(to) {
    app.option_defaults()->group(group);
  }

  void flag(const char* name, bool& value, const char* help) const {
    app.add_flag(name, value, help);
  }
  template <typename T>
  CLI::Option* text(const char* name, T& value, const char* word, const std::string& help) const {
    return takes_text(app.add_option(name, value, help), word);
  }
  template <typename T>
  CLI::Option* integer(const char* name, T& value, const char* word, int64_t low,
                       const std::string& help,
                       int64_t high = std::numeric_limits<int64_t>::max()) const {
    return takes_integer(app.add_option(name, value, help), word, low, high);
  }
  template <typename T>
  CLI::Option* number(const char* name, T& value, const char* word, double low, double high,
                      const char* help) const {
    return takes_number(app.add_option(name, value, help), word, low, high);
  }
  CLI::Option* one_of(const char* name, std::string& value, const std::vector<std::string>& choices,
                      const char* help) const {
    return takes_one_of(app.add_option(name, value, help), choices);
  }

  CLI::App& app;
};

// Adds the option --accelerator auto|cpu|cuda.
CLI::Option* add_accelerator(CLI::App& app, Accelerator& accelerator);

// Throws ConfigError about an unknown option that suggests the nearest option of the app, or else
// `help`, the command that lists the options.
[[noreturn]] void fail_unknown_option(const CLI::App& app, const std::string& given,
                                      const std::string& help);

}  // namespace zerorun
