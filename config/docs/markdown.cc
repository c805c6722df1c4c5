#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/checks/check.h"
#include "config/docs/report.h"
#include "config/keys/key_table.h"

namespace zerorun {

namespace {

constexpr std::string_view kIntroduction = R"(# Configuration

zerorun reads the `ds_config.json` of DeepSpeed 0.19. This page lists every key. It is generated from
the table that the parser uses: `zerorun config docs > docs/config.md`.

- A file is JSON; comments (`//`, `#`, `/* */`) and trailing commas are allowed. Integers may be written
  as `5e8`.
- All problems of a file are reported at once, each with its JSON pointer, line and column: unknown keys,
  wrong types, duplicate keys, contradictory values and unsupported values.
- Files in [Hjson](https://hjson.github.io) are read, too, as DeepSpeed does: keys and strings without
  quotes, lines without commas. Multi-line strings are not supported.
- `null` and `"auto"` mean the same as leaving a key out, also for blocks inside a block, with three exceptions.
  Bucket sizes that are `"auto"` follow the width of the model if the program knows it, as with Hugging Face's
  Trainer. If a key marked *auto* is `"auto"`, it has no default: the program or the run has to set the
  value. `gradient_clipping` rejects `null`, which could mean its default or no clipping.
- `0` and `1` are accepted for `false` and `true`.
- The URL-safe base64 text of a file is accepted in place of its path.
- `zerorun config check FILE` checks a file, `zerorun config show FILE` prints the resolved value of every key,
  `zerorun config schema` prints a JSON Schema for editors.

| status | meaning |
|---|---|
| works | supported |
| PyTorch | supported for PyTorch models; for `zerorun train` and C++ programs a value other than the default is an error |
| always on | zerorun always does what `true` asks for; `false` has no effect |
| no effect | accepted, but does nothing, for the reason given; a value other than the default causes a warning |
| deprecated | accepted under its older name, with a warning |
| not yet | not supported: a value other than the default is an error |
| removed | as "not yet"; DeepSpeed 0.19 has removed the key, too |
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
    case KeyStatus::pytorch:
      return "PyTorch";
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
    case KeyStatus::pytorch:
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
    text += fmt::format(" {} {}.", spec.is_required ? "Required by" : "Only for",
                        fmt::join(split_choices(spec.used_by), ", "));
  }
  for (const std::string_view entry : split_choices(spec.type_fallbacks)) {
    const size_t equals = entry.find('=');
    text += fmt::format(" {}: default `{}`.", entry.substr(0, equals), entry.substr(equals + 1));
  }
  if (!spec.later.empty()) {
    text += fmt::format(" Not yet: {}.", fmt::join(split_choices(spec.later), ", "));
  }
  if (!spec.torch_classes.empty()) {
    text += fmt::format(" Programs that import `deepspeed` can also name torch's: {}.",
                        fmt::join(split_choices(spec.torch_classes), ", "));
  }
  if (!spec.alias.empty()) text += fmt::format(" Also spelt `{}`.", spec.alias);
  if (spec.auto_waits) text += " *auto*";
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

std::string reason_to_refuse(const KeySpec& spec) {
  std::string reason =
      spec.status == KeyStatus::removed ? "DeepSpeed 0.19 has removed it too" : "not built yet";
  if (!spec.note.empty()) reason += fmt::format("; instead: {}", spec.note);
  return reason;
}

// Lists all settings of DeepSpeed that zerorun does not support, in one table.
void add_refused(std::string& out) {
  out +=
      "\n## Unsupported keys\n\n"
      "A configuration that uses one of these gets an error that names the key. All other keys "
      "that DeepSpeed "
      "0.19.8 reads are accepted.\n\n| key | what it does in DeepSpeed | reason |\n|---|---|---|\n";
  for (const KeySpec* spec : key_table().keys()) {
    if (spec->is_unsupported()) {
      out += fmt::format("| `{}` | {} | {} |\n", block_title(spec->pointer), cell(spec->doc),
                         cell(reason_to_refuse(*spec)));
    }
    if (!spec->later.empty()) {
      out += fmt::format("| `{}` | {} | not built yet |\n", block_title(spec->pointer),
                         fmt::join(split_choices(spec->later), ", "));
    }
  }
  out +=
      "\nKeys that DeepSpeed does not read are errors as well, and the error suggests the nearest "
      "key. This includes "
      "keys at the top level, which DeepSpeed ignores; programs that import `deepspeed` get a "
      "warning for those "
      "instead. `compile.disable` and `compile.backend`, which some templates contain, are such "
      "keys: DeepSpeed "
      "0.19 rejects them, too.\n";
}

}  // namespace

std::string config_markdown() {
  std::string out(kIntroduction);
  out += "\n## Top level\n";
  add_block("", out);
  add_refused(out);
  return out;
}

}  // namespace zerorun
