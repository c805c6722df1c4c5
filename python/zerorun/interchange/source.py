"""A saved training as another program left it, parameter by parameter."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from zerorun import _C
from zerorun.host_memory import forget_pages
from zerorun.interchange.untrusted import SavedPart, check_intact, is_plain

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

    def equals(self, other: SourceParameter, begin: int, end: int) -> bool:
        """Whether both have the same shape and the same bytes in elements [begin, end)."""
        if self.shape != other.shape or self.dtype != other.dtype:
            return False
        for low in range(begin, end, _COMPARED_NUMEL):
            one = torch.empty(min(end - low, _COMPARED_NUMEL), dtype=self.dtype)
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
        flat = torch.empty(self.numel, dtype=dtype or self.dtype)
        self.read(None, 0, flat)
        return flat.view(self.shape)

    def gaps(self) -> list[str]:
        """The states, and "values", of which the pieces do not cover every element once, or are no
        real numbers."""
        named = {"values": self.values} | self.states
        return [
            name
            for name, pieces in named.items()
            if not _cover(pieces, self.numel) or not all(map(_is_plain, pieces))
        ]


def _is_plain(piece: Piece) -> bool:
    return callable(piece.tensor) or is_plain(piece.tensor)  # what is read later is checked so


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

    def find(self, names: list[str]) -> SourceParameter | None:
        """The parameter that has one of these names."""
        for name in names:
            found = self.parameters.get(self.aliases.get(name, name))
            if found is not None:
                return found
        return None
