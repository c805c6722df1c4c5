"""Options of `zerorun tune`, from its command line and from DeepSpeed's section `autotuning`."""

import argparse
import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerorun import _C, config

_METRICS = ("throughput", "latency", "flops")
DEFAULTS: dict[str, Any] = {  # of the section
    "results_dir": "autotuning_results",
    "metric": "throughput",
    "start_profile_step": 3,
    "end_profile_step": 5,
    "tuner_num_trials": 50,
    "tuner_early_stopping": 5,
    "num_tuning_micro_batch_sizes": 3,
    "min_train_micro_batch_size_per_gpu": 1,
    "max_train_micro_batch_size_per_gpu": 1024,
    "max_train_batch_size": None,
    "arg_mappings": {},
}
_CONFIG_OPTIONS = ("--deepspeed", "--deepspeed_config", "--config")
_TRIAL_S = 600.0
_COMMAND = "--command="  # which command has started this, for those that are not in PATH


@dataclass
class Options:
    """A search's settings: what is tuned, how, and within which bounds."""

    config: Path
    launcher: list[str]  # the command zerorun, with its options
    program: list[str]
    then_run: bool = False  # train with the best configuration afterwards
    model: str | None = None  # as `zerorun plan --model` takes it
    limits: dict[str, str] = field(default_factory=dict)  # options of `zerorun plan`
    trial_s: float = _TRIAL_S
    autotuning: dict[str, Any] = field(default_factory=dict)  # the section, with its defaults

    @property
    def results(self) -> Path:
        return Path(self.autotuning["results_dir"])

    def value_of(self, option: str | None) -> str | None:
        """The value that the program's arguments give it, as two words or as one with "="."""
        for word, after in itertools.pairwise([*self.program, ""]):
            if word == option:
                return after
            if option is not None and word.startswith(f"{option}="):
                return word.removeprefix(f"{option}=")
        return None

    @property
    def is_train(self) -> bool:
        return self.program[0] == "train"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zerorun tune",
        usage="zerorun tune ds_config.json [options] [launcher options] -- PROGRAM [arguments]",
        description="Tries stages, micro-batch sizes, bucket sizes and offloading in short runs of "
        "a program, as far as they fit according to `zerorun plan`. Writes the fastest "
        "configuration and a table of all trials. The section autotuning of the configuration "
        "limits the search. Ctrl-C ends the search and keeps the best result so far. The arguments "
        "of a PyTorch program have to name the configuration (--deepspeed ds_config.json).",
        epilog="Example: zerorun tune ds_config.json --num_gpus 2 -- train --model mini",
    )
    parser.add_argument("config", type=Path, help="a ds_config.json")
    parser.add_argument(
        "--model",
        help="the model, as for `zerorun plan --model`; default: that of train, else the number "
        "of parameters that the first trial reports",
    )
    for name in ("gpu_memory", "host_memory"):
        parser.add_argument(
            f"--{name}",
            metavar="SIZE",
            help="memory of each GPU or host, as for `zerorun plan` (80GB)",
        )
    parser.add_argument(
        "--trial_seconds",
        type=float,
        default=_TRIAL_S,
        metavar="N",
        help="end a trial after this time (default: %(default)s)",
    )
    parser.add_argument(
        "--run", action="store_true", help="train with the best configuration afterwards"
    )
    return parser


def parse(argv: Sequence[str]) -> Options:
    """ConfigError for what cannot be tuned; SystemExit as argparse has it."""
    own, given = [word for word in argv[:1] if word.startswith(_COMMAND)], list(argv)
    command = given.pop(0).removeprefix(_COMMAND) if own else shutil.which("zerorun")
    if command is None:
        raise _C.ConfigError("the command zerorun is not in PATH")
    if any(word.partition("=")[0] == "--autotuning" for word in given):
        options = _deepspeed_form(given, command)
    else:
        options = _own_form(given, command)
    if not options.program:
        raise _C.ConfigError("no program to run; expected -- PROGRAM [arguments] after the options")
    options.autotuning = _section(options.config)
    if not options.is_train and str(options.config) not in options.program:
        raise _C.ConfigError(
            f"the arguments of {options.program[0]} do not name {options.config}, so a "
            f"trial cannot give it another configuration: add --deepspeed {options.config}"
        )
    return options


def _own_form(argv: list[str], command: str) -> Options:
    cut = argv.index("--") if "--" in argv else len(argv)
    words = argv[:cut]
    files = [word for word in words if word.endswith(".json") and not word.startswith("-")]
    if words[:1] != files[:1] and files:  # after the launcher's options, whose values are unknown
        words = [files[0], *(word for word in words if word != files[0])]
    given, others = _parser().parse_known_args(words)
    limits = {name: getattr(given, name) for name in ("gpu_memory", "host_memory")}
    return Options(
        config=given.config,
        launcher=[command, *others],
        program=argv[cut + 1 :],
        then_run=given.run,
        model=given.model,
        limits={name: size for name, size in limits.items() if size},
        trial_s=given.trial_seconds,
    )


def _deepspeed_form(argv: list[str], command: str) -> Options:
    """`deepspeed --autotuning tune|run [launcher options] script.py --deepspeed ds_config.json`"""
    at = next(i for i, word in enumerate(argv) if word.partition("=")[0] == "--autotuning")
    name, equals, mode = argv.pop(at).partition("=")
    if not equals:
        mode = argv.pop(at) if at < len(argv) else ""
    if mode not in {"tune", "run"}:
        raise _C.ConfigError(f"{name}: got '{mode}', expected tune or run")
    script = next((i for i, word in enumerate(argv) if word.endswith(".py")), len(argv))
    program = argv[script:]
    for option, value in itertools.pairwise(program):
        if option in _CONFIG_OPTIONS and not value.startswith("-"):
            return Options(Path(value), [command, *argv[:script]], program, mode == "run")
    raise _C.ConfigError(
        f"{name}: the script's arguments name no configuration; expected --deepspeed FILE or "
        "--deepspeed_config FILE"
    )


def _section(path: Path) -> dict[str, Any]:
    """The section `autotuning`, with its defaults. ConfigError for what it cannot ask for."""
    section = config.read(path).get("autotuning") or {}
    config.load(path)
    values = DEFAULTS | {name: value for name, value in section.items() if name in DEFAULTS}
    if values["metric"] not in _METRICS:
        raise _C.ConfigError(
            f"{path}: /autotuning/metric is {values['metric']!r}, expected one of "
            f"{', '.join(_METRICS)}"
        )
    if not 1 <= values["start_profile_step"] <= values["end_profile_step"]:
        raise _C.ConfigError(
            f"{path}: /autotuning/start_profile_step is {values['start_profile_step']} and "
            f"end_profile_step {values['end_profile_step']}: expected the first and the last step "
            "that are timed"
        )
    return values
