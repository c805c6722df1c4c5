"""Parameters of an engine: how their values come in, and how those of stage 3 come and go."""

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none
from zerorun.hooks import parameter_memory as memory
from zerorun.hooks.gather_hooks import GatherHooks
from zerorun.hooks.shared_unit import SharedUnit
from zerorun.host_memory import PIECE, forget_pages, moved, pieces_of
from zerorun.model.engine_ranks import EngineRanks
from zerorun.model.model_layout import DTYPES, ModelLayout
from zerorun.model.partition import OwnPart, Partition, partition_of
from zerorun.model.private_partition import PrivatePartition
from zerorun.model.tensors import as_bytes, is_distributed, is_empty, local_of, place
from zerorun.model.uncopied import ModuleHook
from zerorun.program_warning import warn


class EnginePartition(Partition):
    """A parameter that belongs to a unit; it is full while the unit is."""

    in_engine = True

    def __init__(
        self,
        hooks: GatherHooks,
        communicator: _C.Communicator,
        unit: SharedUnit,
        parameter: nn.Parameter,
        intervals: list[_C.StateInterval],
    ) -> None:
        self.home = self._hooks = hooks
        self.communicator = communicator
        self.unit = unit
        self._id = hooks.layout.ids[parameter]
        self._full = unit.full[parameter]
        self._intervals = intervals  # this rank's
        super().__init__(parameter, self._full.shape)
        self.parameter.ds_persist = not self._is_sharded
        parts = [memory.tensor_of(interval.param) for interval in intervals]
        own = parts[0] if len(parts) == 1 else self._full.new_empty(0)
        self.parameter.ds_tensor = own.as_subclass(OwnPart)

    @property
    def _is_sharded(self) -> bool:
        return self._hooks.core.is_sharded(self._id)

    @property
    def _comes_and_goes(self) -> bool:
        return self._hooks.core.full_place(self._id) is not None

    @property
    def available(self) -> bool:
        return self.unit.available or not self._is_sharded

    @property
    def is_held(self) -> bool:
        return self.unit.available  # also of one that stays full

    def local_numel(self) -> int:
        nbytes = sum(memory.tensor_of(interval.param).nbytes for interval in self._intervals)
        return nbytes // self._full.element_size()

    def acquire(self) -> None:
        self.unit.acquire()

    def release(self) -> None:
        self.unit.release()

    @property
    def comes_alone(self) -> bool:
        return self._comes_and_goes and not self.unit.available

    @property
    def is_read_in_place(self) -> bool:
        return self._is_sharded

    def is_stored_in(self, data: torch.Tensor) -> bool:
        return data.data_ptr() == self._full.data_ptr()

    def gather_full(self) -> torch.Tensor:
        # Memory that is always there needs no other rank, which may be gone when the engine ends.
        return super().gather_full() if self._comes_and_goes else self._full.clone()

    def store(self, values: torch.Tensor) -> None:
        shaped = values.detach().view(self.shape)
        if self._comes_and_goes:
            self._full.copy_(shaped)  # it may stay for the next use
        memory.write_full(
            self._hooks.core, self._id, self._hooks.layout.flat(self.parameter, shaped)
        )

    def watch(self, module: nn.Module) -> None:
        self._hooks.hook(module)
        self._hooks.need(self.parameter, module)  # it may be running

    def broadcast(self, values: torch.Tensor, root: int) -> None:
        label = f"parameter {self._hooks.layout.names[self.parameter]}"
        self.communicator.broadcast(as_bytes(values), root, label)


# --- how their values come in, parameter by parameter ---


class Loading:
    """Fills an engine's masters and parameters with the model's values, those of the first rank
    that has them.

    They come in pieces, for which all ranks have memory before any gives up a value: an error for
    lack of it leaves every rank's model whole. Of parameters that are partitioned, pieces are
    allocated on the way.
    """

    def __init__(
        self,
        engine: _C.Engine,
        layout: ModelLayout,
        ranks: EngineRanks,
        device: torch.device,
        *,
        round_masters: bool,
    ) -> None:
        """Collective. `round_masters`: masters get the values that the parameters have in their
        own dtype, in which they then go to the GPU."""
        self._engine, self._layout, self._ranks = engine, layout, ranks
        self._device, self._round_masters = device, round_masters
        sizes = (n.numel() * self._sent_as(p, p.dtype).itemsize for p, n in layout.shapes.items())
        with all_or_none(ranks.job, "initialize"):
            nbytes = min(PIECE, max(sizes, default=0))
            self._staging = torch.empty(nbytes, dtype=torch.uint8, device=device)

    def __iter__(self) -> Iterator[nn.Parameter]:
        """Loads all parameters. Yields each when the engine has its values, on this rank in full
        where it keeps parameters in full; its own memory may go then. Collective."""
        for parameter in memory.to_write(self._engine, self._layout):
            self._load(parameter)
            yield parameter
            moved(self._layout.shapes[parameter].numel() * parameter.element_size())
        self._engine.refresh_from_masters()

    def _is_staged(self, parameter: nn.Parameter) -> bool:
        own = partition_of(parameter) is None
        return own and self._device.type != "cpu" and local_of(parameter).device.type == "cpu"

    def _sent_as(self, parameter: nn.Parameter, own: torch.dtype) -> torch.dtype:
        rounded = self._is_staged(parameter) and self._round_masters
        rounded = rounded and parameter not in self._layout.own_dtype
        return DTYPES[self._engine.param_dtype] if rounded else own

    @torch.no_grad()
    def _load(self, parameter: nn.Parameter) -> None:
        partition = partition_of(parameter)
        if partition is None:
            for begin, values in self._pieces_of_first(parameter):
                self._write(parameter, begin, values)
        elif isinstance(partition, PrivatePartition) and not partition.available:
            for begin, values in partition.pieces():
                flat = self._layout.flat(parameter, values)
                self._write(parameter, begin * flat.numel() // max(1, values.numel()), flat)
        else:
            self._write(parameter, 0, self._layout.flat(parameter, local_of(parameter)))

    def _pieces_of_first(self, parameter: nn.Parameter) -> Iterator[tuple[int, torch.Tensor]]:
        """The values of the first rank that has the parameter: flat pieces, and where each begins.
        Collective."""
        values = self._layout.flat(parameter, local_of(parameter))
        communicator = self._ranks.holding(self._layout.ranks_of.get(parameter, 0))
        staged = self._is_staged(parameter)
        dtype = self._sent_as(parameter, values.dtype)
        is_first = communicator.rank == 0
        on_gpu = self._device.type != "cpu"
        broadcast = communicator.broadcast_on_gpu if on_gpu else communicator.broadcast
        label = f"initial values of {self._layout.names[parameter]}"
        for begin, end in pieces_of(values.numel(), dtype.itemsize):
            piece = values[begin:end]
            if staged or not is_first:
                piece = self._staging[: (end - begin) * dtype.itemsize].view(dtype)
            if staged and is_first:
                piece.copy_(values[begin:end])
            if communicator.world_size > 1:
                broadcast(piece, 0, label)
            yield begin, piece
            forget_pages(values[begin:end])

    def _write(self, parameter: nn.Parameter, begin: int, values: torch.Tensor) -> None:
        """Elements from `begin` on."""
        index = self._layout.ids[parameter]
        end = begin + values.numel()
        if not self._engine.is_sharded(index):
            memory.tensor_of(self._engine.parameter(index))[begin:end].copy_(values)
        for interval in self._engine.state_intervals(index):
            first = max(begin, interval.begin)
            last = min(end, interval.begin + interval.numel)
            if first >= last:
                continue
            place = slice(first - interval.begin, last - interval.begin)
            part = values[first - begin : last - begin]
            parameter_part = memory.tensor_of(interval.param)[place].copy_(part)
            if interval.master is not None:
                master = memory.tensor_of(interval.master)[place]
                master.copy_(parameter_part if self._round_masters else part)


# --- what a program does with them that steps, or a state dict, would not see ---

CHECK_PARTS = 16  # calls of check_assigned() that look at every parameter once


class ProgramWrites:
    """Takes what a program writes to parameters over into their masters, from which the next step
    would make the old values again.

    The engine itself writes to memory that PyTorch does not see, so PyTorch's count of in-place
    changes is that of the program. It does not count those through ``parameter.data``. What the
    engine has taken over by other ways (a gather) is as precise afterwards as before.

    A ``parameter.data`` that the program has replaced (PEFT's CPT does in every forward) is noticed
    by its address: the values go to the engine's memory, which the parameter then views again.

    `parameters`: those that are whole on every rank. Ranks write the same values, as to a
    replicated model; nothing but take_for_step() is collective. `replicated`: at stage 0.
    """

    def __init__(
        self,
        core: _C.Engine,
        layout: ModelLayout,
        parameters: Iterable[nn.Parameter],
        *,
        replicated: bool,
    ) -> None:
        self._core, self._layout, self._replicated = core, layout, replicated
        self._whole = sorted(parameters, key=is_distributed)
        self._plain = sum(not is_distributed(parameter) for parameter in self._whole)
        self._addresses = self._find()
        trained = [p for p in self._whole if layout.is_trainable(p)]
        # At stage 3 one rank may write within a gather, which takes that over.
        self._counted = [p for p in trained if partition_of(p) is None]
        self._versions = self._count()
        self._is_ahead = False  # of the masters on other ranks
        self._trained = [p for p in layout.names if layout.is_trainable(p)]
        self._sharded = [p for p in self._trained if partition_of(p) is not None]
        self._sharded_versions = [p._version for p in self._sharded]
        self._checks = 0

    def _find(self) -> list[int]:
        """Where parameters are, those that are no DTensors first, without a question for each."""
        plain, distributed = self._whole[: self._plain], self._whole[self._plain :]
        return [p.data_ptr() for p in plain] + [local_of(p).data_ptr() for p in distributed]

    def _count(self) -> list[int]:
        return [parameter._version for parameter in self._counted]

    def forget(self) -> None:
        """After all that was written has been taken over by another way (a load)."""
        self._versions = self._count()

    def take(self) -> None:
        """Before masters are read or written, or a step is made of them. Raises ConfigError naming
        a parameter whose memory was replaced by one of another kind."""
        with torch.no_grad():
            written = self._put_back()
            found = self._count()
            if found == self._versions and not written:
                return
            pairs = zip(self._counted, self._versions, found, strict=True)
            written |= {parameter: None for parameter, before, now in pairs if before != now}
            self._versions = found
            for parameter in written:
                memory.take_written(self._core, self._layout.ids[parameter])
                for interval in self._core.state_intervals(self._layout.ids[parameter]):
                    if interval.master is not None:
                        memory.keep_precise(interval, memory.tensor_of(interval.master))
        self._core.accept_changes()
        self._is_ahead = self._replicated

    def take_for_step(self) -> None:
        """As take(), also into the masters that a rank keeps of another's part at stage 0.
        Collective."""
        self.take()
        self._tell_lost()
        if self._is_ahead:
            self._core.refresh_from_masters()
        self._is_ahead = False

    def _tell_lost(self) -> None:
        """Warns of what was written at stage 3 outside of gathers that take it over."""
        before, found = self._sharded_versions, [p._version for p in self._sharded]
        if found == before:
            return
        self._sharded_versions = found
        seen = zip(self._sharded, before, found, strict=True)
        changed = ((p, partition_of(p), now) for p, then, now in seen if now != then)
        lost = [p for p, part, now in changed if part is None or now != part.gathered_version]
        if lost:
            warn(
                f"parameter {self._layout.names[lost[0]]}, one of {len(lost)}, was written where "
                "stage 3 drops it: write before the model is sharded, or within "
                "zerorun.zero.GatheredParameters(parameters, modifier_rank=0)"
            )

    def check_assigned(self, *, everything: bool = False) -> None:
        """Raises ConfigError naming a parameter to which the program has assigned a gradient, which
        steps would not see.

        Each call looks at a part of the parameters, so that a step does not pay for all, unless
        `everything` is true.
        """
        part = slice(None) if everything else slice(self._checks % CHECK_PARTS, None, CHECK_PARTS)
        self._checks += 1
        for parameter in self._trained[part]:
            if parameter.grad is not None:
                raise _C.ConfigError(
                    f"parameter {self._layout.names[parameter]} has a .grad that was assigned to "
                    "it, which a step would not use: gradients come from backward, or are set with "
                    "zerorun.zero.safe_set_full_grad"
                )

    def _put_back(self) -> dict[nn.Parameter, None]:
        """Returns the parameters that viewed other memory than the engine's."""
        found = self._find()
        if found == self._addresses:
            return {}
        moved: dict[nn.Parameter, None] = {}
        for parameter, expected, now in zip(self._whole, self._addresses, found, strict=True):
            partition = partition_of(parameter)
            if expected == now or (partition is not None and partition.is_held):
                continue
            values = local_of(parameter)
            full = memory.full_view(self._core, self._layout, parameter)
            self._check_kind(parameter, values, full)
            full.copy_(values)
            if partition is not None:  # the rank's part is apart
                flat = self._layout.flat(parameter, full)
                for interval in self._core.state_intervals(self._layout.ids[parameter]):
                    part = flat[interval.begin : interval.begin + interval.numel]
                    memory.tensor_of(interval.param).copy_(part)
            place(parameter, full)
            moved[parameter] = None
        return moved

    def _check_kind(
        self, parameter: nn.Parameter, values: torch.Tensor, full: torch.Tensor
    ) -> None:
        got, expected = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (values, full))
        if got != expected or values.device != full.device:
            raise _C.ConfigError(
                f"parameter {self._layout.names[parameter]}: its .data was replaced after "
                f"initialize: got {got} on {values.device}, expected {expected} on {full.device}: "
                "move or cast the model before initialize"
            )


# --- empty parameters in state dicts ---

EMPTY_PARAMETERS = (
    "sharded at stage 3. engine.full_state_dict() is the whole model's, save_checkpoint saves all; "
    "within zerorun.zero.GatheredParameters(model.parameters()) a state dict is whole"
)


class EmptyStateWarnings:
    """Until remove(), warns when a state dict of the model, of a module in it, or of what one of
    them is in, has parameters that are empty: once for each dictionary."""

    def __init__(self, model: nn.Module, sharded: set[nn.Parameter]) -> None:
        self._last: weakref.ref[Any] | None = None  # the dictionary that was warned of
        self._handles = []
        for module in model.modules():
            names = {name for name, p in module.named_parameters(recurse=False) if p in sharded}
            if names:
                hook = ModuleHook(self._look_at, names)
                self._handles.append(module._register_state_dict_hook(hook))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _look_at(
        self, names: set[str], _module: nn.Module, state: Any, prefix: str, _metadata: Any
    ) -> None:
        values = ((name, state.get(prefix + name)) for name in sorted(names))
        tensors = ((name, value) for name, value in values if isinstance(value, torch.Tensor))
        # Whoever keeps the parameter itself knows.
        empty = [n for n, v in tensors if not isinstance(v, nn.Parameter) and is_empty(v)]
        if not empty or (self._last is not None and self._last() is state):
            return
        with contextlib.suppress(TypeError):  # a plain dictionary of the caller's
            self._last = weakref.ref(state)
        warn(
            f"state_dict: {prefix}{empty[0]} is empty, as others may be, since it is "
            f"{EMPTY_PARAMETERS}"
        )
