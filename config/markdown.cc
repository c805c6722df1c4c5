#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/check.h"
#include "config/key_table.h"
#include "config/report.h"

namespace zerorun {

namespace {

constexpr std::string_view kIntroduction = R"(# Configuration

zerorun reads the `ds_config.json` of DeepSpeed 0.19. This page lists every key. It is generated from
the table that the parser uses: `zerorun config docs > docs/config.md`.

- A file is JSON; comments (`//`, `#`, `/* */`) and trailing commas are allowed. Integers may be written
  as `5e8`.
- Every problem of a file is reported at once, with its JSON pointer, line and column: unknown keys,
  wrong types, keys given twice, values that contradict each other or are not supported yet.
- `null` is the same as leaving a key out, where the default is "not given".
- `"auto"` is the same as leaving a key out, for the keys marked *auto* and for all keys that do not
  have the status "works". Beyond that, bucket sizes follow the width of the model where the program
  says it, as with Hugging Face's Trainer, and a schedule's number of steps follows the run.
- Instead of a path, the URL-safe base64 text of a file may be given.
- `zerorun config check FILE` checks a file, `zerorun config show FILE` prints what is in effect,
  `zerorun config schema` prints a JSON Schema for editors.

| status | meaning |
|---|---|
| works | does what it says |
| always on | what `true` asks for is always so; `false` has no effect |
| no effect | accepted; there is nothing to do, for the reason given; a warning when it is not at its default |
| deprecated | accepted under its older name, with a warning |
| not yet | an error when the value asks for something, that is, differs from the default |
| removed | as "not yet", and removed from DeepSpeed 0.19 too |
)";

// Escapes text for a table cell.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string_view status_name(KeyStatus status) {
  switch (status) {
    case KeyStatus::works:
      return "works";
    case KeyStatus::always_on:
      return "always on";
    case KeyStatus::no_effect:
      return "no effect";
    case KeyStatus::deprecated:
      return "deprecated";
    case KeyStatus::not_yet:
      return "not yet";
    case KeyStatus::removed:
      return "removed";
  }
  return "";
}

std::string used_with(const KeySpec& spec) {
  if (spec.gate.empty()) return {};
  return fmt::format(" Used with `{}` only.", fmt::join(split_choices(spec.gate), "` or `"));
}

std::string meaning(const KeySpec& spec) {
  std::string text(spec.doc);
  switch (spec.status) {
    case KeyStatus::works:
    case KeyStatus::always_on:
      text += used_with(spec);
      break;
    case KeyStatus::no_effect:
      text += fmt::format(" No effect: {}.", spec.note);
      break;
    case KeyStatus::deprecated:
      text += fmt::format(" Use `{}`.", spec.note);
      break;
    case KeyStatus::not_yet:
    case KeyStatus::removed:
      if (!spec.note.empty()) text += fmt::format(" Instead: {}.", spec.note);
      text += used_with(spec);
      break;
  }
  if (!spec.used_by.empty()) {
    text += fmt::format(" {} {}.", spec.is_required ? "Required by" : "Of",
                        fmt::join(split_choices(spec.used_by), ", "));
  }
  for (const std::string_view entry : split_choices(spec.type_fallbacks)) {
    const size_t equals = entry.find('=');
    text += fmt::format(" {}: default `{}`.", entry.substr(0, equals), entry.substr(equals + 1));
  }
  if (!spec.later.empty()) {
    text += fmt::format(" Not yet: {}.", fmt::join(split_choices(spec.later), ", "));
  }
  if (!spec.alias.empty()) text += fmt::format(" Also spelt `{}`.", spec.alias);
  if (spec.takes_auto) text += " *auto*";
  return text;
}

std::string block_title(std::string_view pointer) {
  std::string title(pointer.substr(1));
  for (char& c : title) c = c == '/' ? '.' : c;
  return title;
}

// The keys directly below a block, then its blocks.
void add_block(std::string_view block, std::string& out) {
  std::string rows;
  for (const KeySpec* spec : key_table().children(block)) {
    if (spec->is_block() && spec->status == KeyStatus::works) continue;
    const std::string fallback =
        spec->fallback == "null" ? "not given" : fmt::format("`{}`", spec->fallback);
    rows += fmt::format("| `{}` | {} | {} | {} | {} |\n", spec->name(), cell(expected_value(*spec)),
                        fallback, status_name(spec->status), cell(meaning(*spec)));
  }
  if (!rows.empty()) {
    out += fmt::format("\n| key | type | default | status | meaning |\n|---|---|---|---|---|\n{}",
                       rows);
  }
  for (const KeySpec* spec : key_table().children(block)) {
    if (!spec->is_block()) continue;
    out += fmt::format("\n## {}\n\n{}\n", block_title(spec->pointer), meaning(*spec));
    add_block(spec->pointer, out);
  }
}

}  // namespace

std::string config_markdown() {
  std::string out(kIntroduction);
  out += "\n## Top level\n";
  add_block("", out);
  return out;
}

}  // namespace zerorun
