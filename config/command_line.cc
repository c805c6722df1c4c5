#include "config/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <memory>
#include <utility>
#include <vector>

#include "config/checks/suggest.h"
#include "core/check.h"
#include "core/parse_number.h"
#include "core/printable.h"

namespace zerorun {

namespace {

constexpr size_t kHelpWidth = 100;

// Breaks lines between words.
std::string wrapped(const std::string& text, size_t width) {
  std::string out;
  size_t column = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const size_t length = end - begin;
    if (column > 0 && column + 1 + length > width) {
      out += '\n';
      column = 0;
    }
    if (column > 0) out += ' ';
    out += text.substr(begin, length);
    column += length + (column > 0 ? 1 : 0);
    begin = end + 1;
  }
  return out;
}

class PlainHelp final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    const std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    return CLI::detail::find_and_replace(text, "\n\n\n", "\n\n");
  }
  std::string make_description(const CLI::App* app) const override {
    return app->get_description() + "\n\n";
  }
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    if (is_positional) return option->get_name(/*positional=*/true);
    std::vector<std::string> names;
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return CLI::detail::join(names, ", ");
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const bool has_value = option->get_type_size() != 0 && !option->get_type_name().empty();
    return has_value ? " " + option->get_type_name() : "";
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    if (option->get_required() && !option->get_positional()) text = "Required. " + text;
    if (!option->get_default_str().empty()) {
      text += fmt::format(". Default: {}", option->get_default_str());
    }
    return wrapped(text, kHelpWidth - get_column_width());
  }
};

std::string expected_but_got(const std::string& expected, const std::string& text) {
  return fmt::format("expected {}, got '{}'", expected, printable(text));
}

}  // namespace

std::string with_underscores(const std::string& argument) {
  std::string out = argument;
  if (argument.starts_with("--")) {
    const auto end = out.begin() + static_cast<ptrdiff_t>(std::min(out.find('='), out.size()));
    std::replace(out.begin() + 2, end, '-', '_');
  }
  return out;
}

void use_plain_help(CLI::App& app) {
  auto formatter = std::make_shared<PlainHelp>();
  constexpr size_t kColumn = 28;
  formatter->column_width(kColumn);
  formatter->label("Positionals", "Arguments");
  formatter->label("SUBCOMMAND", "COMMAND");
  app.formatter(formatter);
  app.set_help_flag("-h,--help", "Print this text");
}

CLI::Option* takes_integer(CLI::Option* option, const std::string& word, int64_t low,
                           int64_t high) {
  const std::string expected = high == std::numeric_limits<int64_t>::max()
                                   ? fmt::format("an integer of at least {}", low)
                                   : fmt::format("an integer from {} to {}", low, high);
  return option->type_name(word)->check([=](const std::string& text) {
    return parse_number(text, low, high) ? std::string() : expected_but_got(expected, text);
  });
}

CLI::Option* takes_number(CLI::Option* option, const std::string& word, double low, double high) {
  const std::string expected = fmt::format("a number from {} to {}", low, high);
  return option->type_name(word)->check([=](const std::string& text) {
    return parse_number(text, low, high) ? std::string() : expected_but_got(expected, text);
  });
}

CLI::Option* takes_text(CLI::Option* option, const std::string& word) {
  return option->type_name(word)->check([](const std::string& text) {
    return text.empty() ? "the value is empty; give one, or leave the option out" : "";
  });
}

CLI::Option* takes_one_of(CLI::Option* option, const std::vector<std::string>& choices) {
  return option->type_name(fmt::format("{}", fmt::join(choices, "|")))
      ->check([=](const std::string& text) {
        const bool is_known = std::ranges::find(choices, text) != choices.end();
        return is_known
                   ? std::string()
                   : expected_but_got(fmt::format("one of {}", fmt::join(choices, ", ")), text);
      });
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  // Its type names them; a word for other values is in capitals.
  const std::vector<std::string> words = CLI::detail::split(option.get_type_name(), '|');
  const bool are_choices = words.size() > 1 && std::ranges::none_of(words, [](auto& word) {
                             return word.empty() || (word[0] >= 'A' && word[0] <= 'Z');
                           });
  return are_choices ? words : std::vector<std::string>();
}

CLI::Option* add_accelerator(CLI::App& app, Accelerator& accelerator) {
  const auto set = [&accelerator](const std::string& name) {
    accelerator = name == "cpu"    ? Accelerator::cpu
                  : name == "cuda" ? Accelerator::cuda
                                   : Accelerator::automatic;
  };
  return takes_one_of(
      app.add_option_function<std::string>(
          "--accelerator", set,
          "Device of the ranks. Default: auto, which is cuda if there is a GPU, else cpu"),
      {"auto", "cpu", "cuda"});
}

void fail_unknown_option(const CLI::App& app, const std::string& given, const std::string& help) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    known.insert(known.end(), option->get_lnames().begin(), option->get_lnames().end());
  }
  const std::string bare = given.substr(std::min(given.find_first_not_of('-'), given.size()));
  if (!bare.empty() && (std::isdigit(static_cast<unsigned char>(bare.front())) != 0)) {
    fail<ConfigError>("{} begins with '-' like an option: write a value as in --option={}",
                      printable(given), printable(given));
  }
  const std::string nearest = nearest_name(bare, known);
  fail<ConfigError>("unknown option {}; {}", printable(given),
                    nearest.empty() ? "see " + help : fmt::format("did you mean --{}?", nearest));
}

}  // namespace zerorun
