"""The files of DeepSpeed's checkpoints that hold everything but the optimizer's tensors."""

import math
import os
import re
from typing import Any

import torch

from zerorun import _C
from zerorun.interchange import untrusted
from zerorun.interchange.source import Piece, Source, SourceParameter
from zerorun.interchange.untrusted import SavedPart
from zerorun.model.units import plain_name
from zerorun.optimizers.saved_values import is_decoupled, whole_number

_OF_RANK = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
_WHOLE = "mp_rank_00_model_states.pt"
# The entries of a file that are DeepSpeed's own; the rest is the program's.
_OWN = {
    "module",
    "buffer_names",
    "optimizer",
    "param_shapes",
    "frozen_param_shapes",
    "frozen_param_fragments",
    "shared_params",
    "lr_scheduler",
    "data_sampler",
    "random_ltd",
    "sparse_tensor_module_names",
    "skipped_steps",
    "global_steps",
    "global_samples",
    "dp_world_size",
    "mp_world_size",
    "checkpoint_parallel_dimensions",
    "ds_config",
    "ds_version",
    "universal_checkpoint_info",
    "num_experts",
}


class ModelStates:
    """mp_rank_00_model_states.pt (stages 0 to 2), or each rank's file (stage 3)."""

    def __init__(self, folder: str) -> None:
        """Raises CheckpointError."""
        self.folder = folder
        self.path = _first_file(folder)
        self.content = _read(self.path)
        if not isinstance(self.content, dict) or "module" not in self.content:
            raise _C.CheckpointError(
                f"{self.path}: has no 'module': not one of DeepSpeed's model files"
            )
        shapes = self.content.get("param_shapes") or []
        self.param_shapes: list[dict[str, tuple[int, ...]]] = [
            {plain_name(name): tuple(shape) for name, shape in group.items()}
            for group in ([shapes] if isinstance(shapes, dict) else shapes)
        ]

    def describe(self, source: Source) -> None:
        """Everything that is not a parameter."""
        source.files.append(SavedPart(self.path))
        content, module = self.content, self.content["module"] or {}
        if content.get("num_experts"):
            raise _C.CheckpointError(
                f"{self.path}: the model has experts (MoE), which is not supported"
            )
        shared = content.get("shared_params") or {}
        source.aliases = {plain_name(name): plain_name(owner) for name, owner in shared.items()}
        for name in map(plain_name, content.get("buffer_names") or []):
            if name in module:
                if not untrusted.is_readable(module[name]):
                    raise _C.CheckpointError(f"{self.path}: the buffer {name} is not a tensor")
                source.buffers[name] = module[name]
        source.dtype = _dtype_of(content.get("ds_config"))
        source.decoupled = _is_decoupled(content.get("ds_config"))
        source.lr_scheduler = content.get("lr_scheduler")
        source.global_steps, source.skipped_steps = (
            whole_number(content.get(name, 0), name, self.path)
            for name in ("global_steps", "skipped_steps")
        )
        source.client_state = {k: v for k, v in content.items() if k not in _OWN}

    def add_full(self, source: Source) -> None:
        """The parameters of a checkpoint without ZeRO. Tied ones are views of one memory there."""
        owners: dict[tuple[Any, ...], str] = {}
        for name, value in self.content["module"].items():
            if name in source.buffers or not isinstance(value, torch.Tensor):
                continue
            place = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape)
            owner = owners.setdefault((*place, value.stride()), name) if value.numel() else name
            if owner != name:
                source.aliases[name] = owner
            else:
                self._add(source, name, tuple(value.shape), [value])

    def add_frozen(self, source: Source, stage: int) -> None:
        """The parameters that the optimizer did not have."""
        shapes = self.content.get("frozen_param_shapes")
        if stage == 3:
            if shapes:
                self._add_fragments(source, shapes)
            return
        fragments = self.content.get("frozen_param_fragments") or {}
        for name, value in (self.content["module"] | fragments).items():
            known = name in source.parameters or name in source.buffers or name in source.aliases
            if not known and isinstance(value, torch.Tensor):
                self._add(source, name, tuple(value.shape), [value])

    def _add_fragments(self, source: Source, shapes: dict[str, Any]) -> None:
        """Stage 3: a part of each in each rank's file."""
        ranks = {0: self.content}
        for name in os.listdir(self.folder):
            match = _OF_RANK.fullmatch(name)
            if match is not None and int(match[1]) > 0 and int(match[2]) == 0:
                path = os.path.join(self.folder, name)
                source.files.append(SavedPart(path))
                ranks[int(match[1])] = _read(path)
        if not self.content.get("frozen_param_fragments"):
            return  # saved without them
        for name, shape in shapes.items():
            parts = []
            for rank in range(len(ranks)):
                part = (ranks.get(rank, {}).get("frozen_param_fragments") or {}).get(name)
                if part is None:
                    raise _C.CheckpointError(
                        f"{self.folder}: rank {rank}'s part of the frozen parameter {name} is "
                        f"missing: zero_pp_rank_{rank}_mp_rank_00_model_states.pt should have it"
                    )
                parts.append(part)
            self._add(source, name, tuple(shape), parts)

    def _add(
        self, source: Source, name: str, shape: tuple[int, ...], parts: list[torch.Tensor]
    ) -> None:
        numel, mapped = torch.Size(shape).numel(), untrusted.is_mapped(self.path)
        made = SourceParameter(shape, [], parts[0].dtype)
        begin = 0
        for part in parts:
            count = min(part.numel(), numel - begin)
            made.values.append(Piece(begin, count, part, 0, mapped))
            begin += count
        if made.gaps():
            raise _C.CheckpointError(
                f"{self.folder}: {begin} of the {numel} elements of the frozen parameter {name} "
                "are there: the files are of different checkpoints"
            )
        source.parameters[name] = made


def _read(path: str) -> Any:
    """A file's content. Some of its names are those of modules in wrappers, others are not."""
    content = untrusted.read(path)
    for key in ("module", "frozen_param_shapes", "frozen_param_fragments"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content[key] = {plain_name(name): value for name, value in content[key].items()}
    return content


def _first_file(folder: str) -> str:
    for name in (_WHOLE, "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    raise _C.CheckpointError(
        f"{folder}: neither {_WHOLE} nor zero_pp_rank_0_mp_rank_00_model_states.pt is there: the "
        "checkpoint is incomplete, or saved with pipeline parallelism, which is not supported"
    )


def _dtype_of(config: Any) -> str | None:
    """The parameters' settings in a configuration."""
    sections = config if isinstance(config, dict) else {}
    for dtype, names in {"bf16": ("bf16", "bfloat16"), "fp16": ("fp16",)}.items():
        if any((sections.get(name) or {}).get("enabled") is True for name in names):
            return dtype
    return "fp32" if isinstance(config, dict) else None


def _is_decoupled(config: Any) -> bool | None:
    """Whether the optimizer of a configuration is AdamW or Adam with L2; None: neither."""
    section = config.get("optimizer") if isinstance(config, dict) else None
    if not isinstance(section, dict) or not isinstance(section.get("type"), str):
        return None
    params = section.get("params")
    mode = params.get("adam_w_mode", True) if isinstance(params, dict) else True
    return is_decoupled(section["type"], adam_w_mode=mode is not False)


def scaler_of(saved: Any, where: str) -> tuple[float, int, int, int] | None:
    """The state of a loss scale that moves. Raises CheckpointError."""
    values = vars(saved) if isinstance(saved, untrusted.PlainObject) else {}
    if "cur_iter" not in values:
        return None
    found = (
        float(values["cur_scale"]),
        whole_number(values["cur_iter"], "cur_iter", where),
        whole_number(values["last_overflow_iter"], "last_overflow_iter", where, low=-1),
        whole_number(values["cur_hysteresis"], "cur_hysteresis", where, low=1),
    )
    if not 0 < found[0] < math.inf or found[2] > found[1]:
        raise _C.CheckpointError(
            f"{where}: the loss scale is {found[0]} at step {found[1]}, after an overflow at "
            f"{found[2]}, which none can be"
        )
    return found


# --- the universal format: a folder per parameter, as ds_to_universal writes it ---

_FOLDER = "zero"
_VALUES = "fp32.pt"


def is_universal(folder: str) -> bool:
    return os.path.isdir(os.path.join(folder, _FOLDER))


def open_universal(folder: str, *, optimizer_states: bool = True) -> Source:
    """Describes the checkpoint in `folder`. Raises CheckpointError."""
    model = ModelStates(folder)
    source = Source(folder, "a DeepSpeed checkpoint in the universal format")
    model.describe(source)
    root = os.path.join(folder, _FOLDER)
    others = source.aliases.keys() | source.buffers.keys()
    for path, _, names in os.walk(root):
        name = plain_name(os.path.relpath(path, root))
        if _VALUES in names and name not in others:
            files = [file for file in sorted(names) if file.endswith(".pt")]
            source.parameters[name] = _parameter(source, path, files, optimizer_states)
    shapes = {name: shape for group in model.param_shapes for name, shape in group.items()}
    groups = {name: number for number, group in enumerate(model.param_shapes) for name in group}
    missing = sorted(shapes.keys() - source.parameters.keys())
    if missing:
        raise _C.CheckpointError(
            f"{root}: {missing[0]} and {len(missing) - 1} more parameters have no folder with "
            f"{_VALUES}: the conversion did not end"
        )
    for name, parameter in source.parameters.items():
        parameter.trained, parameter.group = name in shapes, groups.get(name, 0)
        parameter.reshape(shapes.get(name, parameter.shape), os.path.join(root, name))
    stage = 3 if "zero_pp_rank" in os.path.basename(model.path) else 2
    model.add_frozen(source, stage)
    common = os.path.join(root, "optimizer_state.pt")
    if optimizer_states and os.path.isfile(common):
        _add_common(source, common)
    return source


def _parameter(source: Source, path: str, names: list[str], states: bool) -> SourceParameter:
    made = SourceParameter((), [])
    for name in names:
        file, state = os.path.join(path, name), name.removesuffix(".pt")
        if name != _VALUES and not states:
            continue
        content = untrusted.read(file)
        value = content.get("param") if isinstance(content, dict) else content
        source.files.append(SavedPart(file))
        if isinstance(value, torch.Tensor) and value.dim() > 0 and state != "step":
            piece = Piece(0, value.numel(), value, 0, untrusted.is_mapped(file))
            if name == _VALUES:
                made.shape, made.dtype, made.values = tuple(value.shape), value.dtype, [piece]
            else:
                made.states[state] = [piece]
        else:
            made.numbers[state] = value
    return made


def _add_common(source: Source, path: str) -> None:
    """Hyperparameters, the loss scale, and at stage 3 the step, which are in one file for all."""
    content = untrusted.read(path)
    source.loss_scaler = scaler_of(content.get("loss_scaler"), path)
    groups = content.get("param_groups")
    if isinstance(groups, list):
        source.param_groups = [{k: v for k, v in g.items() if k != "params"} for g in groups]
        if "optimizer_state_dict" in content:  # stage 3 counts the pieces of groups
            group_of = {i: n for n, group in enumerate(groups) for i in group.get("params", ())}
            for parameter in source.parameters.values():
                parameter.group = group_of.get(parameter.group, parameter.group)
    states = content.get("optimizer_state_dict", {}).get("state", {})
    for state in states.values():
        for parameter in source.parameters.values():
            if parameter.states and "step" in state:
                parameter.numbers.setdefault("step", state["step"])
