"""A saved training as another program left it, parameter by parameter."""

import functools
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from zerorun import _C, program_state
from zerorun.host_memory import forget_pages
from zerorun.interchange.untrusted import SavedPart, check_intact, is_plain
from zerorun.model import buffers as saved_buffers
from zerorun.model.tensors import CORE_DTYPES, stored_shape
from zerorun.model.units import plain_name
from zerorun.optimizers.saved_values import DECOUPLED

_COMPARED_NUMEL = 1 << 22  # elements that are in memory at a time


@dataclass(frozen=True)
class Piece:
    """Elements [begin, begin + numel) of a flattened parameter, out of a tensor of a file."""

    begin: int
    numel: int
    tensor: torch.Tensor | Callable[[], torch.Tensor]  # a function reads it at each call
    offset: int = 0  # of the first element in the flattened tensor
    mapped: bool = False  # the tensor is a part of a file

    def elements(self, low: int, high: int) -> torch.Tensor:
        """Elements [low, high) of the parameter, flat; fewer where the file has no more."""
        tensor = self.tensor if isinstance(self.tensor, torch.Tensor) else self.tensor()
        first = self.offset + low - self.begin
        return tensor.reshape(-1)[first : first + high - low]


@dataclass
class SourceParameter:
    """One parameter: its values, and what the optimizer keeps of it."""

    shape: tuple[int, ...]
    values: list[Piece]
    dtype: torch.dtype = torch.float32  # of the values
    trained: bool = False  # whether it was the optimizer's
    states: dict[str, list[Piece]] = field(default_factory=dict)  # a number for each element
    numbers: dict[str, Any] = field(default_factory=dict)  # one for the parameter: its step
    group: int = 0  # of the optimizer's
    parts: int = 1  # in which ranks saved the values, empty ones too
    exact: bool = False  # bits that no cast may change (packed weights, fp8)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def read(self, state: str | None, begin: int, out: torch.Tensor) -> None:
        """Writes elements [begin, begin + out.numel()) of a state, or of the values, into `out`.

        Raises CheckpointError when some of them are not there.
        """
        end, filled = begin + out.numel(), 0
        for piece in self.values if state is None else self.states[state]:
            low, high = max(begin, piece.begin), min(end, piece.begin + piece.numel)
            if low < high:
                part = piece.elements(low, high)
                if part.numel() == high - low:
                    out[low - begin : high - begin].copy_(part)
                    filled += high - low
                    if piece.mapped:
                        forget_pages(part)
        if filled != out.numel():
            raise _C.CheckpointError(
                f"{state or 'values'}: {filled} of the elements {begin} to {end} are there"
            )

    def equals(self, other: "SourceParameter", begin: int, end: int) -> bool:
        """Whether both have the same shape and the same bytes in elements [begin, end)."""
        if self.shape != other.shape or self.dtype != other.dtype:
            return False
        for low in range(begin, end, _COMPARED_NUMEL):
            one = torch.empty(min(end - low, _COMPARED_NUMEL), dtype=self.dtype, device="cpu")
            two = torch.empty_like(one)
            self.read(None, low, one)
            other.read(None, low, two)
            if not torch.equal(one.view(torch.uint8), two.view(torch.uint8)):
                return False
        return True

    def reshape(self, shape: tuple[int, ...], where: str) -> None:
        """Gives it the shape that another file says it has. Raises CheckpointError."""
        if math.prod(shape) != self.numel:
            raise _C.CheckpointError(f"{where}: {self.numel} elements, expected shape {shape}")
        self.shape = shape

    def full(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """All values, in shape; in their own dtype unless another is asked for."""
        flat = torch.empty(self.numel, dtype=dtype or self.dtype, device="cpu")
        self.read(None, 0, flat)
        return flat.view(self.shape)

    def gaps(self) -> list[str]:
        """The states, and "values", of which the pieces do not cover every element once, or are no
        real numbers."""
        named = {"values": self.values} | self.states
        return [
            name
            for name, pieces in named.items()
            if not _cover(pieces, self.numel)
            # What is read later is checked then.
            or not all(callable(piece.tensor) or is_plain(piece.tensor) for piece in pieces)
        ]


def _cover(pieces: list[Piece], numel: int) -> bool:
    end = 0
    for piece in sorted(pieces, key=lambda piece: piece.begin):
        if piece.begin != end:
            return False
        end += piece.numel
    return end == numel


@dataclass
class Source:  # size: a table of what checkpoints of all programs may have
    """A checkpoint or model of another program."""

    path: str
    format: str  # in words, for messages
    parameters: dict[str, SourceParameter] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)  # further names of parameters
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    # Hyperparameters by group; None: there are no optimizer states.
    param_groups: list[dict[str, Any]] | None = None
    # Whether Adam's weight decay was decoupled (AdamW), where groups do not say it.
    decoupled: bool | None = None
    lr_scheduler: dict[str, Any] | None = None
    # cur_scale, cur_iter, last_overflow_iter and cur_hysteresis of a dynamic loss scale.
    loss_scaler: tuple[float, int, int, int] | None = None
    dtype: str | None = None  # of the parameters in training: fp32, bf16 or fp16
    global_steps: int = 0
    skipped_steps: int = 0
    client_state: dict[str, Any] = field(default_factory=dict)
    files: list[SavedPart] = field(default_factory=list)  # which have checksums of their own
    is_model: bool = False  # of which nobody expects more than values
    # It says neither which tensors are buffers nor which share memory.
    only_names: bool = False
    why_no_states: str = "it has no optimizer states"

    def check_files(self, first: int = 0, step: int = 1) -> None:
        """Raises CheckpointError for a file, of every step-th from the first on, that is not as it
        was saved."""
        for part in self.files[first::step]:
            check_intact(part)

    def with_plain_names(self) -> "Source":
        """As it is, but for the names of wrappers in its names. Raises CheckpointError for two that
        are one then."""
        aliases = {plain_name(name): plain_name(owner) for name, owner in self.aliases.items()}
        self.aliases = {name: owner for name, owner in aliases.items() if name != owner}
        tables: tuple[dict[str, Any], ...] = (self.parameters, self.buffers)
        for named in tables:
            plain = {plain_name(name): value for name, value in named.items()}
            if len(plain) != len(named):
                raise _C.CheckpointError(
                    f"{self.path}: {len(named) - len(plain)} names are there twice, with and "
                    "without the wrappers of torch.compile or checkpoint_wrapper"
                )
            named.clear()
            named.update(plain)
        return self

    def find(self, names: list[str]) -> SourceParameter | None:
        """The parameter that has one of these names."""
        for name in names:
            found = self.parameters.get(self.aliases.get(name, name))
            if found is not None:
                return found
        return None


# --- zerorun's own checkpoints, read without an engine as other programs' are ---


def optimizer_of(
    directory: str | os.PathLike[str], tag: str | None = None
) -> tuple[str | None, bool | None]:
    """The name of the optimizer whose states a checkpoint has, and whether its weight decay is
    decoupled, if that is said. Raises CheckpointError."""
    saved = _C.SavedModel(os.fspath(directory), tag or "")
    data = program_state.decode(saved.client_state)
    name = None if data.get("model_only") is True else data.get("optimizer")
    objects = program_state.decode_objects(saved.client_state, allow_pickle=False)
    groups = objects.get("param_groups") or [{}]
    return name, groups[0].get(DECOUPLED)


def exact_dtypes_of(data: dict[str, Any], where: str) -> dict[str, torch.dtype]:
    """The dtypes of parameters that the core's dtype does not say. Raises CheckpointError."""
    dtypes = data.get("exact_dtypes") or {}
    if isinstance(dtypes, dict) and all(isinstance(v, torch.dtype) for v in dtypes.values()):
        return {plain_name(name): dtype for name, dtype in dtypes.items()}
    raise _C.CheckpointError(f"{where}: 'exact_dtypes' are no dtypes by name")


def open_own(directory: str | os.PathLike[str], tag: str | None = None) -> Source:
    """Describes a checkpoint's values and buffers; its optimizer states are an engine's to load.

    Raises CheckpointError.
    """
    saved = _C.SavedModel(os.fspath(directory), tag or "")
    data = program_state.decode(saved.client_state)
    folder = os.path.join(os.fspath(directory), saved.tag)
    if not os.path.isdir(folder):  # `directory` is one tag's
        folder = os.fspath(directory)
    source = Source(folder, "a zerorun checkpoint")
    source.buffers = saved_buffers.read(saved)
    source.global_steps = data.get("counters", {}).get("global_steps", saved.step)

    @functools.lru_cache(maxsize=1)  # a parameter is read piece by piece
    def values(index: int, dtype: torch.dtype) -> torch.Tensor:
        parameter = saved.parameters[index]
        numel = math.prod(parameter.shape)
        flat = torch.empty(numel, dtype=CORE_DTYPES[parameter.dtype], device="cpu")
        saved.read(index, flat)
        return flat.view(dtype)

    exact_dtypes = exact_dtypes_of(data, folder)

    # The table of a checkpoint that SavedModel has found to be in order.
    with open(os.path.join(source.path, "checkpoint.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    table = {plain_name(entry["name"]): entry for entry in manifest["parameters"]}
    trained = [table[p.name]["dtype"] for p in saved.parameters if p.trainable and not p.alias_of]
    source.dtype = trained[0] if trained else None
    source.param_groups = [{} for _ in manifest["groups"]]
    for index, parameter in enumerate(saved.parameters):
        if parameter.alias_of:
            source.aliases[parameter.name] = parameter.alias_of
        elif parameter.saved:
            shape, dtype = tuple(parameter.shape), CORE_DTYPES[parameter.dtype]
            exact = exact_dtypes.get(parameter.name)
            if exact is not None:
                shape, dtype = _seen_as(shape, dtype, exact, f"{folder}: {parameter.name}"), exact
            piece = Piece(0, math.prod(shape), functools.partial(values, index, dtype))
            made = SourceParameter(shape, [piece], dtype, parameter.trainable)
            made.exact = exact is not None
            made.group = table[parameter.name].get("group", 0)
            source.parameters[parameter.name] = made
    return source


def _seen_as(
    shape: tuple[int, ...], stored: torch.dtype, dtype: torch.dtype, where: str
) -> tuple[int, ...]:
    """The shape of a parameter whose bytes are of another dtype than the core's. Raises
    CheckpointError."""
    if stored_shape(torch.Size(shape), dtype) == list(shape) and stored.itemsize == dtype.itemsize:
        return shape
    if stored == torch.uint8 and stored_shape(torch.Size(shape[:-1]), dtype) == list(shape):
        return shape[:-1]
    raise _C.CheckpointError(f"{where}: {stored} of shape {shape} is not what {dtype} is saved as")
