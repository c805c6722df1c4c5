"""Putting another program's checkpoint into an engine of any stage and number of ranks."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none
from zerorun.hooks.parameter_memory import state_names_of, states_of, tensor_of
from zerorun.interchange.source import Source, SourceParameter
from zerorun.model.tensors import as_bytes
from zerorun.optimizers.saved_values import whole_number
from zerorun.shards.shards import Shards
from zerorun.shards.state_access import encode

_CHUNK_NUMEL = 1 << 22  # elements that are read at a time
# Elements whose states may be in memory before those that are offloaded to files go there.
_ACCEPTED_NUMEL = 1 << 25
_MAX_PROBLEMS = 10  # that one message lists


class Filling:
    """A source as the content of an engine: first all checks, then all values.

    Each rank reads what it holds, wherever that lies in the files.
    """

    def __init__(self, shards: Shards, source: Source, *, strict: bool, states: bool) -> None:
        """`strict`: the model must have the parameters of the source, no more and no fewer.
        `states`: the optimizer's too. Raises CheckpointError, on this rank."""
        self._shards = shards
        self._source = source
        self._states = states
        self._found: dict[int, SourceParameter] = {}
        problems = [*self._match(strict)]
        if not problems and not self._found:
            problems = ["no parameter of it is in the model"]
        if states and not problems:
            problems = [*self._optimizer_problems()]
        if problems:
            more = len(problems) - _MAX_PROBLEMS
            shown = problems[:_MAX_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
            raise _C.CheckpointError(
                f"{source.path}, {source.format}, does not fit: " + "\n  ".join(["", *shown])
            )

    def _match(self, strict: bool) -> Iterator[str]:
        """Finds each parameter in the source; says what does not fit."""
        layout, source, used = self._shards.layout, self._source, set()
        further: dict[nn.Parameter, list[str]] = {}
        for alias, parameter in layout.aliases:
            further.setdefault(parameter, []).append(alias)
        missing: list[str] = []
        for parameter, index in layout.ids.items():
            names = [layout.names[parameter], *further.get(parameter, ())]
            used.update(names)
            found = source.find(names)
            if found is None:
                missing.append(names[0])
            elif found.shape != tuple(layout.shapes[parameter]):
                yield (
                    f"{names[0]} has shape {tuple(layout.shapes[parameter])}, in the checkpoint "
                    f"{found.shape}"
                )
            elif parameter in layout.own_dtype and found.dtype != parameter.dtype:
                yield (
                    f"{names[0]} is {found.dtype}, in this model {parameter.dtype}, of which no "
                    "value may change"
                )
            elif found.dtype.is_complex and parameter not in layout.own_dtype:
                yield f"{names[0]} is {found.dtype}, in this model {parameter.dtype}"
            elif gaps := found.gaps():
                yield f"{names[0]}: {', '.join(gaps)} are not complete"
            elif strict and (other := self._differing(names, found)):
                yield (
                    f"{names[0]} and {other} are one parameter of this model, in the checkpoint "
                    "their values differ; load_module_strict=False takes those of the first"
                )
            else:
                self._found[index] = found
        used |= set(layout.outside.values())
        used |= {owner for alias, owner in source.aliases.items() if alias in used}
        unknown = [name for name in source.parameters if name not in used]
        if strict:
            yield from _differences(missing, unknown)

    def _differing(self, names: list[str], found: SourceParameter) -> str | None:
        """Another name of a tied parameter under which the source has other values, as far as this
        rank's share of the elements shows."""
        ranks = self._shards.communicator
        share = -(-found.numel // ranks.world_size)
        begin, end = (min(found.numel, share * (ranks.rank + n)) for n in range(2))
        for name in names:
            other = self._source.parameters.get(name, found)
            if other is not found and not found.equals(other, begin, end):
                return name
        return None

    def _optimizer_problems(self) -> Iterator[str]:
        core, layout = self._shards.core, self._shards.layout
        if self._source.param_groups is None:
            yield (
                f"{self._source.why_no_states}; load_optimizer_states=False loads the model alone"
            )
            return
        steps: set[int] = set()
        for parameter, index in layout.ids.items():
            found = self._found.get(index)
            if found is None or not layout.is_trainable(parameter) or found.numel == 0:
                continue
            name = layout.names[parameter]
            if not found.trained:
                yield f"{name} is trained here and was frozen in the checkpoint: no states of it"
                continue
            if not found.states and not self._shards.external:
                continue  # saved before the first step
            if "step" in found.numbers:  # DeepSpeed's Muon and momentum keep none
                step = found.numbers["step"]
                steps.add(whole_number(step, f"step of {name}", self._source.path))
            wanted = set(state_names_of(core, index))
            if not self._shards.external and wanted != found.states.keys():
                yield (
                    f"{name} has the optimizer states {sorted(found.states)}, this engine's "
                    f"{self._shards.settings.optimizer.type} keeps {sorted(wanted)}; "
                    "load_optimizer_states=False loads the model alone"
                )
        if len(steps) > 1 and not self._shards.external:
            yield f"its parameters were updated {sorted(steps)} times; expected one number for all"
        applied = max(0, self._source.global_steps - self._source.skipped_steps)
        self._steps = max(steps, default=applied)

    def check_states(self, wanted: list[set[str]]) -> None:
        """`wanted`: by group, what a torch optimizer keeps of each parameter.

        Raises CheckpointError where the source has a part of it: a step would not find the rest.
        """
        layout = self._shards.layout
        for parameter, index in layout.ids.items():
            found = self._found.get(index)
            if found is None or not found.states or not layout.is_trainable(parameter):
                continue  # a first step makes all of them
            saved = found.states.keys() | found.numbers.keys()
            missing = wanted[layout.group_of[parameter]] - saved
            if missing:
                raise _C.CheckpointError(
                    f"{self._source.path}: the optimizer states of {layout.names[parameter]} are "
                    f"{sorted(saved)}, and with the checkpoint's hyperparameters this engine's "
                    f"optimizer needs {sorted(missing)}, too; load_optimizer_states=False loads "
                    "the model alone"
                )

    def check_files(self) -> None:
        """Raises CheckpointError for a damaged file. Each is read by one rank. Collective."""
        ranks = self._shards.communicator
        with all_or_none(ranks, "load_checkpoint"):
            self._source.check_files(ranks.rank, ranks.world_size)

    def fill(self) -> None:
        """Writes everything. Collective."""
        core, source = self._shards.core, self._source
        core.accept_changes()
        with torch.no_grad(), all_or_none(self._shards.communicator, "load_checkpoint"):
            if self._states:
                core.set_progress(self._steps, source.skipped_steps, source.loss_scaler)
            self._write_outside()
            written = 0
            own_dtype = {self._shards.layout.ids[p] for p in self._shards.layout.own_dtype}
            for index, found in self._found.items():
                # A frozen parameter in a dtype of its own is written bit by bit.
                values = as_bytes(found.full().flatten()) if index in own_dtype else None
                for interval in core.state_intervals(index):
                    if values is None:
                        self._write(interval, found)
                    else:
                        part = values[interval.begin : interval.begin + interval.numel]
                        tensor_of(interval.param).copy_(part)
                written += found.numel  # which is the same on all ranks
                if written > _ACCEPTED_NUMEL:
                    core.accept_changes()
                    written = 0
        core.refresh_from_masters()

    def _write(self, interval: _C.StateInterval, found: SourceParameter) -> None:
        begin = interval.begin
        # Parameters follow from their masters.
        target = tensor_of(interval.param if interval.master is None else interval.master)
        _copy(target, lambda at, out: found.read(None, begin + at, out))
        if not self._states or interval.grad is None:
            return
        if self._shards.torch_states is not None:
            self._put(interval, found)
            return
        targets = states_of(self._shards.core, interval)
        for name in state_names_of(self._shards.core, interval.parameter):

            def read(at: int, out: torch.Tensor, name: str = name) -> None:
                if found.states:
                    found.read(name, begin + at, out)
                else:
                    out.zero_()

            if f"{name}_scale" in targets:
                whole = torch.empty(interval.numel, dtype=torch.float32, device="cpu")
                read(0, whole)
                coded = encode(whole, name != "exp_avg_sq")
                targets[name].copy_(coded[0])
                targets[f"{name}_scale"].copy_(coded[1])
            else:
                _copy(targets[name], read)

    def _put(self, interval: _C.StateInterval, found: SourceParameter) -> None:
        """States of an optimizer of torch's."""
        state: dict[str, Any] = dict(found.numbers)
        for name in found.states:
            state[name] = torch.empty(interval.numel, dtype=torch.float32, device="cpu")
            found.read(name, interval.begin, state[name])
        assert self._shards.torch_states is not None
        if state:
            self._shards.torch_states.put(interval.parameter, interval.begin, state)

    def _write_outside(self) -> None:
        """Frozen parameters that the engine does not keep."""
        for parameter, name in self._shards.layout.outside.items():
            found = self._source.find([name])
            if found is not None and found.shape == tuple(parameter.shape):
                parameter.copy_(found.full().to(parameter.device))


def _copy(target: torch.Tensor, read: Callable[[int, torch.Tensor], None]) -> None:
    """Fills flat memory of the engine's through a piece of the host's."""
    for begin in range(0, target.numel(), _CHUNK_NUMEL):
        part = target[begin : begin + _CHUNK_NUMEL]
        buffer = torch.empty(part.numel(), dtype=torch.float32, device="cpu")
        read(begin, buffer)
        part.copy_(buffer)


def _hint(place: int, name: str, others: list[str]) -> str:
    near = _C.nearest_parameter(name, others) if place < _MAX_PROBLEMS else ""  # else not shown
    return f" (which has {near})" if near else ""


def _differences(missing: list[str], unknown: list[str]) -> Iterator[str]:
    for place, name in enumerate(missing):
        yield f"the model has {name}, the checkpoint not{_hint(place, name, unknown)}"
    for place, name in enumerate(unknown):
        yield f"the checkpoint has {name}, the model not{_hint(place, name, missing)}"
    if missing or unknown:
        yield "load_module_strict=False loads what both have"
