"""DeepSpeed's checkpoints of stages 1, 2 and 3, as saved on any number of ranks.

A rank's file has flat tensors without names. Stages 1 and 2: the parameters of a group one after
the other, cut into a part per rank. Stage 3: of each parameter the rank's part, which is as long on
all ranks, one after the other; a group may be cut into further ones.
"""

import itertools
import os
import re
from collections.abc import Iterator
from typing import Any

import torch

from zerorun import _C
from zerorun.interchange import untrusted
from zerorun.interchange.deepspeed_model import ModelStates, scaler_of
from zerorun.interchange.source import Piece, Source, SourceParameter
from zerorun.interchange.untrusted import SavedPart
from zerorun.optimizers.saved_values import whole_number

OPTIMIZER_FILE = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_EXPERTS = re.compile(r"(layer_.*expert_.*_model_states|expp_rank_.*_optim_states)\.pt")
_SHARDED_PARAMETERS = 3  # the stage
_MAX_SHOWN = 8  # ranks that a message names


def is_zero_checkpoint(folder: str) -> bool:
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return any(name.endswith(("_optim_states.pt", "_model_states.pt")) for name in names)


def optimizer_files(folder: str) -> list[str]:
    """The ranks' files, in order. Raises CheckpointError for what no data-parallel job writes."""
    found: dict[int, str] = {}
    for name in sorted(os.listdir(folder)):
        if _EXPERTS.fullmatch(name):
            raise _C.CheckpointError(
                f"{os.path.join(folder, name)}: the checkpoint has experts (MoE) in files of their "
                "own, which is not supported"
            )
        match = OPTIMIZER_FILE.fullmatch(name)
        if match is None:
            continue
        if int(match[2]) > 0:
            raise _C.CheckpointError(
                f"{os.path.join(folder, name)}: the checkpoint was saved with tensor parallelism; "
                "one of data-parallel ranks alone is supported"
            )
        if int(match[1]) in found:
            raise _C.CheckpointError(
                f"{folder}: rank {match[1]} has two files, {found[int(match[1])]} and {name}: two "
                "checkpoints were saved into one folder"
            )
        found[int(match[1])] = name
    absent = (rank for rank in range(max(found, default=0)) if rank not in found)
    missing = list(itertools.islice(absent, _MAX_SHOWN))
    if missing:
        raise _C.CheckpointError(
            f"{folder}: the optimizer states of ranks {missing} are missing (files "
            f"zero_pp_rank_{missing[0]}_mp_rank_00_optim_states.pt and so on). They may be on the "
            "disk of the host that saved them"
        )
    return [os.path.join(folder, found[rank]) for rank in sorted(found)]


def open_zero(folder: str, *, optimizer_states: bool = True) -> Source:
    """Describes the checkpoint in `folder`. Raises CheckpointError.

    Not `optimizer_states`: only values are asked for, so that those of stage 0 do too.
    """
    files = optimizer_files(folder)
    model = ModelStates(folder)
    source = Source(folder, "a DeepSpeed checkpoint", files=[SavedPart(path) for path in files])
    model.describe(source)
    if not files and model.param_shapes:
        raise _C.CheckpointError(
            f"{folder}: no file *_optim_states.pt is there, but the model's parameters were "
            "sharded over ranks: the files may be on the disks of the hosts that saved them"
        )
    if not files:
        model.add_full(source)
        source.only_names = True
        source.why_no_states = (
            "it was saved without ZeRO (stage 0), whose optimizer states have no names"
        )
        return source
    ranks = [_Rank(path, optimizer_states) for path in files]
    stage, count = ranks[0].stage, ranks[0].world_size
    for rank in ranks:
        if (rank.stage, rank.world_size) != (stage, count):
            raise _C.CheckpointError(
                f"{rank.path}: stage {rank.stage} on {rank.world_size} ranks, in {ranks[0].path} "
                f"stage {stage} on {count}: the files are of different checkpoints"
            )
    if count != len(files):
        raise _C.CheckpointError(
            f"{folder}: {len(files)} files *_optim_states.pt, expected those of {count} ranks; the "
            "others may be on the disks of the hosts that saved them"
        )
    source.format = f"a DeepSpeed checkpoint of stage {stage} on {count} ranks"
    source.loss_scaler = ranks[0].loss_scaler
    if optimizer_states:
        source.param_groups = ranks[0].param_groups
    place = _place_whole if stage == _SHARDED_PARAMETERS else _place_in_groups
    for name, shape, group, parts in place(model, ranks):
        source.parameters[name] = _parameter(folder, name, shape, group, parts, ranks)
    model.add_frozen(source, stage)
    return source


class _Rank:
    """One rank's file."""

    def __init__(self, path: str, optimizer_states: bool) -> None:
        self.path = path
        self.mapped = untrusted.is_mapped(path)
        state = _member(untrusted.read(path), "optimizer_state_dict", dict, path)
        self.stage = int(state.get("zero_stage", 1))
        if self.stage not in {1, 2, 3}:
            raise _C.CheckpointError(f"{path}: got zero_stage {self.stage}, expected 1, 2 or 3")
        counts = state.get("partition_count", 1)
        self.world_size = max(counts) if isinstance(counts, list) else int(counts)
        whole = self.stage == _SHARDED_PARAMETERS
        key = "fp32_flat_groups" if whole else "single_partition_of_fp32_groups"
        groups = _member(state, key, list, path)
        self.groups: list[torch.Tensor] = [value.flatten() for value in groups]
        # Elements left out before each parameter that begins at an aligned place.
        self.paddings = state.get("param_alignment_paddings")
        self.loss_scaler = scaler_of(state.get("loss_scaler"), path)
        self.states: dict[int, dict[str, Any]] = {}
        self.param_groups: list[dict[str, Any]] | None = None
        self.group_of: dict[int, int] = {}
        if state.get("ds_zero_partition_groups"):
            raise _C.CheckpointError(
                f"{path}: parameters were partitioned over several groups of ranks (MiCS, hpZ or "
                "experts), which is not supported"
            )
        if optimizer_states:
            self._read_optimizer(state, "optimizer_state_dict" if whole else "base_optimizer_state")

    def _read_optimizer(self, state: dict[str, Any], key: str) -> None:
        base = state.get(key)
        if isinstance(base, list):  # checkpoint.elastic_checkpoint
            step = state.get("base_optimizer_state_step")
            common = {} if step is None else {"step": step}
            self.states = {index: common | group for index, group in enumerate(base)}
            self.param_groups = [{} for _ in base]  # whose hyperparameters were not saved
            return
        optimizer = _member(state, key, dict, self.path)
        self.states = _member(optimizer, "state", dict, self.path)
        groups = _member(optimizer, "param_groups", list, self.path)
        # Stage 3 counts the pieces of groups; each group has a list of its.
        self.group_of = {i: n for n, group in enumerate(groups) for i in group.get("params", ())}
        self.param_groups = [
            {name: value for name, value in group.items() if name != "params"} for group in groups
        ]
        steps = [group["step"] for group in self.param_groups if "step" in group]
        if steps and not any("step" in states for states in self.states.values()):
            for states in self.states.values():  # DeepSpeed's FusedAdam counts by group
                states["step"] = steps[0]


def _member(state: Any, key: str, kind: type, path: str) -> Any:
    value = state.get(key) if isinstance(state, dict) else None
    if not isinstance(value, kind):
        raise _C.CheckpointError(
            f"{path}: {key} is {type(value).__name__}, expected {kind.__name__}: this is not one "
            "of DeepSpeed's files of optimizer states"
        )
    return value


# A run of a parameter's elements: (first element, elements, rank, group of its file, offset there).
_Part = tuple[int, int, int, int, int]
_Placed = tuple[str, tuple[int, ...], int, list[_Part]]


def _place_in_groups(model: ModelStates, ranks: list[_Rank]) -> Iterator[_Placed]:
    """Stages 1 and 2."""
    if len(model.param_shapes) != len(ranks[0].groups):
        raise _C.CheckpointError(
            f"{ranks[0].path}: {len(ranks[0].groups)} groups, {len(model.param_shapes)} in "
            f"{model.path}: the files are of different checkpoints"
        )
    for group, shapes in enumerate(model.param_shapes):
        part_numel = max(1, ranks[0].groups[group].numel())  # the last rank's may be shorter
        paddings = ranks[0].paddings[group] if ranks[0].paddings else [0] * len(shapes)
        offset = 0
        for (name, shape), padding in zip(shapes.items(), paddings, strict=True):
            numel, parts = torch.Size(shape).numel(), []
            for rank in range(offset // part_numel, len(ranks)):
                low = max(offset, rank * part_numel)
                high = min(offset + numel, (rank + 1) * part_numel)
                if low < high:
                    parts.append((low - offset, high - low, rank, group, low - rank * part_numel))
            yield name, shape, group, parts
            offset += numel + padding


def _place_whole(model: ModelStates, ranks: list[_Rank]) -> Iterator[_Placed]:
    """Stage 3."""
    sizes = [group.numel() for group in ranks[0].groups]
    group, offset = 0, 0
    for shapes in model.param_shapes:
        for name, shape in shapes.items():
            numel, parts = torch.Size(shape).numel(), []
            own = -(-numel // len(ranks))  # of each rank, the last one's padded
            taken = 0
            while taken < own and group < len(sizes):
                run = min(own - taken, sizes[group] - offset)
                for rank in range(len(ranks)):
                    low, high = rank * own + taken, min(rank * own + taken + run, numel)
                    if low < high:
                        parts.append((low, high - low, rank, group, offset))
                taken, offset = taken + run, offset + run
                if offset == sizes[group]:
                    group, offset = group + 1, 0
            yield name, shape, parts[0][3] if parts else 0, parts


def _add_number(made: SourceParameter, key: str, value: Any, where: str) -> None:
    """A parameter has one step, whichever ranks' files say it."""
    if key == "step":
        step, before = whole_number(value, key, where), int(made.numbers.get(key, value))
        if step != before:
            raise _C.CheckpointError(
                f"{where}: step {step}, another rank's file has {before}: the files are of "
                "different checkpoints"
            )
    made.numbers[key] = value


def _parameter(
    folder: str,
    name: str,
    shape: tuple[int, ...],
    group: int,
    parts: list[_Part],
    ranks: list[_Rank],
) -> SourceParameter:
    made = SourceParameter(shape, [], trained=True, group=ranks[0].group_of.get(group, group))
    for begin, numel, rank, own, offset in parts:
        file = ranks[rank]
        found = file.groups[own]
        made.dtype = found.dtype
        states: list[tuple[str | None, Any]] = [(None, found), *file.states.get(own, {}).items()]
        for key, value in states:
            if key is not None and (not isinstance(value, torch.Tensor) or value.dim() == 0):
                _add_number(made, key, value, f"{name} in {file.path}")
                continue
            if offset + numel > value.numel():
                raise _C.CheckpointError(
                    f"{file.path}: {key or 'fp32 values'} of group {own} has {value.numel()} "
                    f"elements, {name} takes those from {offset} to {offset + numel}: the file is "
                    "another checkpoint's, or its states are elsewhere (NVMe offload)"
                )
            piece = Piece(begin, numel, value, offset, file.mapped)
            (made.values if key is None else made.states.setdefault(key, [])).append(piece)
    gaps = made.gaps()
    if gaps:
        raise _C.CheckpointError(
            f"{folder}: {name} (group {group}): {gaps[0]} of {torch.Size(shape).numel()} elements "
            "are not complete: the files are of different checkpoints"
        )
    return made
