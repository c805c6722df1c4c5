#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "checkpoint/loading/checkpoint_reader.h"
#include "config/command_line.h"
#include "core/check.h"
#include "tools/ckpt/ckpt_report.h"
#include "tools/terminal/tool.h"

namespace zerorun {

namespace {

Format format_of(const CkptArguments& arguments) {
  return arguments.json ? Format::json : Format::text;
}

void check_folder(const std::string& path, const char* command) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return;
  fail<ConfigError>("zerorun ckpt {}: {}: {}", command, path,
                    error ? error.message() : "expected a folder");
}

// Adds a command about the folder DIR, which `run` describes, as JSON with --json.
AppOptions add_command(CLI::App& ckpt, CkptArguments& arguments, const char* name,
                       const char* about, const char* examples, const std::function<void()>& run) {
  CLI::App* tool = add_tool(ckpt, name, about, examples);
  AppOptions{*tool}
      .text("DIR", arguments.path, "", "A checkpoint, or a folder of them")
      ->required();
  tool->callback([&arguments, name, run] {
    check_folder(arguments.path, name);
    run();
  });
  return AppOptions(*tool);
}

void add_json(AppOptions tool, CkptArguments& arguments) {
  tool.flag("--json", arguments.json, "Print one JSON object, for use in scripts");
}

// Verifies with a progress bar for each checkpoint that takes long.
void verify(const std::string& path, const std::function<void(const std::string& line)>& report) {
  std::optional<ProgressBar> bar;
  std::string shown;
  verify_checkpoint(
      path,
      [&](const std::string& line) {
        bar.reset();
        report(line);
      },
      [&](const std::string& folder, uint64_t nbytes, uint64_t total) {
        if (folder != shown) bar.emplace("reading " + folder, total);
        shown = folder;
        bar->add(nbytes);
      });
}

// Prints damage in the JSON object, and also throws the error.
void verify_as_json(const std::string& path) {
  nlohmann::ordered_json json = {{"ok", true}, {"intact", nlohmann::ordered_json::array()}};
  const auto print_json = [&json] {
    print_line(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  };
  try {
    verify(path, [&](const std::string& line) { json["intact"].push_back(line); });
  } catch (const Error& error) {
    json["ok"] = false;
    json["problem"] = error.what();
    print_json();
    throw;
  }
  print_json();
}

void define_diff(CLI::App& ckpt, CkptArguments& arguments) {
  CLI::App* tool = add_tool(ckpt, "diff", "Compares two checkpoints, parameter by parameter",
                            "Example:\n  zerorun ckpt diff out/train/step100 out/train/step200");
  AppOptions options{*tool};
  options.text("FIRST", arguments.path, "", "A checkpoint, or a folder of checkpoints: its latest")
      ->required();
  options.text("SECOND", arguments.other, "", "Another checkpoint or folder")->required();
  add_json(options, arguments);
  tool->callback([&arguments] {
    for (const std::string& path : {arguments.path, arguments.other}) check_folder(path, "diff");
    print_text(compare_checkpoints(arguments.path, arguments.other, format_of(arguments)));
  });
}

}  // namespace

void define_ckpt(CLI::App& tools, CkptArguments& arguments) {
  CLI::App* ckpt =
      add_tool(tools, "ckpt", "Lists, shows, verifies, compares, removes and converts checkpoints",
               "Examples:\n"
               "  zerorun ckpt ls out/train\n"
               "  zerorun ckpt verify out/train");
  ckpt->require_subcommand(1);
  add_json(add_command(*ckpt, arguments, "ls",
                       "Lists checkpoints with their step, time, size and number of ranks",
                       "Example:\n  zerorun ckpt ls out/train",
                       [&arguments] {
                         print_text(list_checkpoints(arguments.path, format_of(arguments)));
                       }),
           arguments);
  AppOptions show =
      add_command(*ckpt, arguments, "show",
                  "Shows a checkpoint's parameters with shapes, dtypes, states and norms",
                  "Examples:\n"
                  "  zerorun ckpt show out/train\n"
                  "  zerorun ckpt show out/train --tag step100 --no_norms",
                  [&arguments] {
                    print_text(show_checkpoint(arguments.path, arguments.tag, !arguments.no_norms,
                                               format_of(arguments)));
                  });
  show.text("--tag", arguments.tag, "TAG", "Tag of the checkpoint. Default: the latest");
  show.flag("--no_norms", arguments.no_norms, "Do not read the values to compute norms");
  add_json(show, arguments);
  add_json(add_command(*ckpt, arguments, "verify",
                       "Reads all bytes of checkpoints and checks their checksums",
                       "Example:\n  zerorun ckpt verify out/train",
                       [&arguments] {
                         if (arguments.json) return verify_as_json(arguments.path);
                         verify(arguments.path, print_line);
                       }),
           arguments);
  define_diff(*ckpt, arguments);
  AppOptions prune =
      add_command(*ckpt, arguments, "prune",
                  "Removes old checkpoints; keeps the latest and those that it cannot read",
                  "Examples:\n"
                  "  zerorun ckpt prune out/train --keep_last 3 --dry_run\n"
                  "  zerorun ckpt prune out/train --keep_last 3 --keep_every 1000",
                  [&arguments] {
                    print_text(prune_checkpoints(arguments.path, arguments.keep, arguments.dry_run,
                                                 format_of(arguments)));
                  });
  prune.integer("--keep_last", arguments.keep.last, "N", 1, "Number of checkpoints to keep")
      ->required();
  prune.integer("--keep_every", arguments.keep.every, "N", 1,
                "Also keep the checkpoints of every N-th step");
  prune.flag("--dry_run", arguments.dry_run, "Only print which checkpoints would be removed");
  add_json(prune, arguments);
}

}  // namespace zerorun
