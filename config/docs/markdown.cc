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
- Every problem of a file is reported at once, with its JSON pointer, line and column: unknown keys,
  wrong types, keys given twice, values that contradict each other or are not supported yet.
- Files in [Hjson](https://hjson.github.io) are read too, as DeepSpeed does: keys and strings without
  quotes, lines without commas. Strings of several lines are not.
- `null` is the same as leaving a key out; so is `"auto"`, for every key and for blocks inside a block.
  Beyond that, bucket sizes that are `"auto"` follow the width of the model where the program says it,
  as with Hugging Face's Trainer. Keys marked *auto* have no default then: the program, the run or
  the next tool has to say the value. `gradient_clipping` refuses `null`, which could mean either
  of its default and none.
- `0` and `1` are taken for `false` and `true`.
- Instead of a path, the URL-safe base64 text of a file may be given.
- `zerorun config check FILE` checks a file, `zerorun config show FILE` prints what is in effect,
  `zerorun config schema` prints a JSON Schema for editors.

| status | meaning |
|---|---|
| works | does what it says |
| PyTorch | does what it says for PyTorch models; an error in `zerorun train` and programs in C++ when it asks for something |
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

// The settings that a file of DeepSpeed's users may ask for in vain, in one place.
void add_refused(std::string& out) {
  out +=
      "\n## What is refused\n\n"
      "A file that asks for one of these is an error that names the key. All else that DeepSpeed "
      "0.19.8 reads is taken.\n\n| key | what it asks for | reason |\n|---|---|---|\n";
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
      "\nKeys that no part of DeepSpeed reads are errors as well, with the nearest name: at the "
      "top "
      "level, too, where DeepSpeed ignores them. Programs that import `deepspeed` get a warning "
      "about those instead. `compile.disable` and `compile.backend`, which some templates have, "
      "are such keys: DeepSpeed 0.19 refuses them in that section.\n";
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
