"""zerorun ckpt import and export: checkpoints of other programs into zerorun's, and out again.

zerorun ckpt import SOURCE DIR
zerorun ckpt export DIR OUTPUT --to safetensors | bin | dcp
"""

import argparse
import os
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from zerorun import _C, consolidate
from zerorun.checkpoints.shard_files import parameter_names
from zerorun.command_line import Parser, ProgressBar, tell_error
from zerorun.hooks.parameter_memory import states_of
from zerorun.initialization import initialize
from zerorun.interchange import formats, tensor_kinds
from zerorun.interchange.distributed import write_distributed
from zerorun.interchange.source import Piece, Source, open_own, optimizer_of
from zerorun.model.model_layout import DTYPES
from zerorun.optimizers.saved_values import DECOUPLED
from zerorun.program_warning import logger

_OUTPUTS = ["safetensors", "bin", "dcp", "universal"]  # the last is an error that says more
# The rule that keeps these states.
_RULES = {
    ("exp_avg", "exp_avg_sq"): "AdamW",
    ("exp_avg",): "Lion",
    (): "AdamW",  # of which nothing was saved yet
}


class _Skeleton(nn.Module):
    """The parameters and buffers of a source, under their names, without what a model computes."""

    def __init__(self, source: Source, dtype: torch.dtype) -> None:
        super().__init__()
        for name, saved in source.parameters.items():
            is_cast = saved.dtype.is_floating_point and not saved.exact
            kept = dtype if is_cast else saved.dtype
            values = torch.zeros(saved.shape, dtype=kept)
            self._add(name, nn.Parameter(values, requires_grad=saved.trained))
        for alias, owner in source.aliases.items():
            if owner in source.parameters:
                self._add(alias, self.get_parameter(owner))
        for name, buffer in source.buffers.items():
            self._add(name, torch.zeros_like(buffer))

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        path, _, own = name.rpartition(".")
        module: nn.Module = self
        for part in path.split(".") if path else ():
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(own, tensor)
        else:
            module.register_buffer(own, tensor)


def _engine_of(source: Source, dtype: str, rule: str, offload: str | None) -> Any:
    """An engine of one rank for what the source has."""
    model = _Skeleton(source, DTYPES[dtype])
    groups: list[dict[str, Any]] = [{"params": []} for _ in source.param_groups or [{}]]
    for name, saved in source.parameters.items():
        if (parameter := model.get_parameter(name)).requires_grad:
            groups[saved.group]["params"].append(parameter)
    params: dict[str, Any] = {"lr": 0.0}
    if (source.param_groups or [{}])[0].get(DECOUPLED, source.decoupled) is False:
        rule, params["adam_w_mode"] = "Adam", False
    zero: dict[str, Any] = {"stage": 1}
    if offload is not None:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": offload}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": zero,
        "optimizer": {"type": rule, "params": params},
    }
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    return initialize(model, model_parameters=groups, config=config)[0]


def import_checkpoint(
    source_directory: str,
    directory: str,
    *,
    tag: str | None = None,
    dtype: str | None = None,
    offload: str | None = None,
    tensors: Mapping[str, str] | None = None,
) -> str:
    """Writes another program's checkpoint into `directory` as one of zerorun's; returns its folder.

    `dtype`: of the parameters in training, where the source does not say it. `offload`: a folder on
    a local disk for the optimizer's states, which else take the host's memory. `tensors`: by name
    or pattern, "buffer", "frozen", or the parameter that it is tied to, where the source names
    tensors only; what is concluded of the others is a warning. Raises CheckpointError, ConfigError,
    IoError.
    """
    folder = formats.find(source_directory, tag)
    if folder is None:
        raise _C.CheckpointError(
            f"{source_directory}: no checkpoint of DeepSpeed, Hugging Face or "
            "torch.distributed.checkpoint is there; zerorun's own need no import"
        )
    source = formats.open_source(folder)
    target = os.path.join(directory, f"global_step{source.global_steps}")
    _check_apart(folder, directory, target)
    with formats.told(folder):
        for line in tensor_kinds.settle(source, tensors or {}):
            logger.warning("%s: %s", folder, line)
    states = {tuple(sorted(p.states)) for p in source.parameters.values() if p.trained}
    rules = {_RULES.get(names) for names in states} or {"AdamW"}
    if len(rules) != 1 or None in rules:
        raise _C.ConfigError(
            f"{folder}: has the optimizer states {sorted(states)}; those of AdamW and Lion can be "
            "converted: load the others into an engine with their optimizer, and save"
        )
    kind = dtype or source.dtype or _dtype_of(source)
    with formats.told(folder):  # of names and sizes that no model has
        engine = _engine_of(source, kind, str(rules.pop()), offload)
    try:
        with_states = source.param_groups is not None
        _, client_state = engine.load_checkpoint(
            source_directory, tag, load_optimizer_states=with_states
        )
        if source.lr_scheduler:
            # Passed on as it was saved.
            engine.lr_scheduler = types.SimpleNamespace(state_dict=lambda: source.lr_scheduler)
        engine._saves_model_only = not with_states
        if engine.optimizer is not None:  # something is trained
            # The hyperparameters of which the source says nothing.
            known = {key for group in source.param_groups or [] for key in group}
            known |= set() if source.decoupled is None else {DECOUPLED}
            own = {key for group in engine.optimizer.group_settings() for key in group}
            engine.optimizer.unknown = frozenset(own - known)
        engine.save_checkpoint(directory, None, client_state)
        return target
    finally:
        engine.destroy()


def _check_apart(folder: str, directory: str, target: str) -> None:
    """Raises ConfigError where the checkpoint would replace files of other programs' ones."""
    taken = formats.find(directory, None) if os.path.isdir(directory) else None
    if os.path.realpath(target) == os.path.realpath(folder):
        taken = folder
    if taken is not None:
        raise _C.ConfigError(
            f"{directory}: has the checkpoint {taken} of another program, some files of which "
            "would be replaced; name another folder"
        )


def _dtype_of(source: Source) -> str:
    """The dtype of most elements, as far as engines know it."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    numels: dict[str, int] = {}
    for parameter in source.parameters.values():
        if parameter.dtype in names:
            name = names[parameter.dtype]
            numels[name] = numels.get(name, 0) + parameter.numel
    return max(numels, key=lambda name: numels[name], default="fp32")


def export_distributed(directory: str, output: str, *, tag: str | None = None) -> None:
    """Writes a checkpoint of zerorun's or another program's as a folder of
    torch.distributed.checkpoint, with its optimizer states. Raises CheckpointError, IoError."""
    folder = formats.find(directory, tag)
    if folder is not None:
        if os.path.realpath(output) == os.path.realpath(folder):
            raise _C.ConfigError(f"{output}: is the checkpoint itself; name another folder")
        source = formats.open_source(folder)
        source.check_files()
        write_distributed(source, output)
        return
    source = open_own(directory, tag)
    rules = {"zerorun's Adam": "AdamW", "zerorun's Lion": "Lion"}
    optimizer, source.decoupled = optimizer_of(directory, tag)
    if optimizer is None:
        source.param_groups = None
        write_distributed(source, output)
        return
    if optimizer not in rules:
        raise _C.ConfigError(
            f"{source.path}: has the states of {optimizer}; those of Adam, AdamW and Lion can be "
            "exported with the model"
        )
    engine = _engine_of(source, source.dtype or "fp32", rules[optimizer], None)
    try:
        engine.load_checkpoint(directory, tag)
        _add_states(source, engine)
        write_distributed(source, output)
    finally:
        engine.destroy()


def _add_states(source: Source, engine: Any) -> None:
    """The states of an engine of one rank, as they are in its memory."""
    core = engine._core
    names = parameter_names(engine._shards)
    defaults = torch.optim.AdamW([torch.zeros(1)]).defaults
    source.param_groups = [defaults | g for g in engine.optimizer.group_settings()]
    for interval in core.state_intervals():
        saved = source.parameters[names[interval.parameter]]
        for name, state in states_of(core, interval).items():
            piece = Piece(interval.begin, interval.numel, state)
            saved.states.setdefault(name, []).append(piece)
        saved.numbers = {"step": float(core.step_count)} if saved.states else {}


def main(arguments: list[str]) -> int:
    """`arguments`: after ``zerorun ckpt``. Errors are one line on standard error."""
    parser = Parser(prog="zerorun ckpt")
    commands = parser.add_subparsers(dest="command", required=True)
    into = commands.add_parser("import", help="convert a checkpoint of another program")
    into.add_argument("source", help="folder saved by DeepSpeed, Hugging Face or PyTorch DCP")
    into.add_argument("directory", help="folder for the checkpoint")
    into.add_argument(
        "--dtype", choices=[*DTYPES], help="dtype of the parameters; default: as saved"
    )
    into.add_argument(
        "--offload", metavar="DIR", help="folder on a local disk to keep states in, to save memory"
    )
    into.add_argument(
        "--tensor",
        metavar="NAME=KIND",
        action="append",
        default=[],
        help="what a tensor is that has no optimizer states: buffer, frozen (a parameter), or the "
        "name of the parameter that it is tied to; NAME may be a pattern with *; default: as far "
        "as the values and the parts of ranks show it",
    )
    out = commands.add_parser("export", help="convert a checkpoint for other programs")
    out.add_argument("directory", help="checkpoint of zerorun, DeepSpeed or PyTorch DCP")
    out.add_argument("output", help="folder for the model")
    out.add_argument("--to", choices=_OUTPUTS, default=_OUTPUTS[0])
    out.add_argument(
        "--dtype",
        choices=[*DTYPES],
        help="dtype of the parameters; default: fp32, from the master parameters",
    )
    out.add_argument("--max_shard_size", default="5GB", help="maximum size of a file; default: 5GB")
    for command in (into, out):
        command.add_argument("--tag", help="tag of the checkpoint; default: the last one saved")
    options = parser.parse_args(arguments)
    try:
        with ProgressBar(f"{options.command}ing") as bar:
            made = _run(options, bar)
        print(_C.printable("\n".join(made)))
    except (_C.Error, OSError) as error:
        return tell_error(f"zerorun ckpt {options.command}", error)
    return 0


def _run(options: argparse.Namespace, bar: ProgressBar) -> list[str]:
    """The files or folders that were written."""
    given = options.source if options.command == "import" else options.directory
    if not os.path.isdir(given):
        raise _C.ConfigError(f"{given}: no such folder")
    if options.command == "import":
        kinds = dict(text.rpartition("=")[::2] for text in options.tensor)
        if "" in kinds:
            raise _C.ConfigError(f"--tensor: got {options.tensor}, expected NAME=KIND")
        made = import_checkpoint(
            options.source,
            options.directory,
            tag=options.tag,
            dtype=options.dtype,
            offload=options.offload,
            tensors=kinds,
        )
        return [made]
    if options.to == "universal":
        raise _C.ConfigError(
            "--to universal: DeepSpeed's universal format is read, not written; --to safetensors "
            "writes the model for from_pretrained before deepspeed.initialize (optimizer states "
            "begin anew there), --to dcp the model with its optimizer states"
        )
    if options.to == "dcp":
        if options.dtype is not None:
            raise _C.ConfigError("--dtype is not for --to dcp: dcp.load converts values itself")
        export_distributed(options.directory, options.output, tag=options.tag)
        return [options.output]
    return consolidate.save_model(
        options.directory,
        options.output,
        tag=options.tag,
        dtype=DTYPES[options.dtype or "fp32"],
        max_shard_size=options.max_shard_size,
        safe_serialization=options.to == "safetensors",
        progress=bar.show,
    )
