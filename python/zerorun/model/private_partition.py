"""Parameters before there is an engine: sharded ones, and values for a model on the meta device."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none, share
from zerorun.host_memory import PIECE, copy_in_pieces, forget_pages, is_of_a_file, moved, pieces_of
from zerorun.model.partition import OwnPart, Partition, gathered, partition_of
from zerorun.model.tensors import as_bytes, local_of
from zerorun.model.units import plain_name


def own_nbytes(parameter: nn.Parameter) -> int:
    """Host memory of this rank that a parameter leaves when an engine has its values: none of a
    file's."""
    partition = partition_of(parameter)
    kept = partition._kept if isinstance(partition, PrivatePartition) else local_of(parameter)
    return 0 if kept is None or kept.device.type != "cpu" or is_of_a_file(kept) else kept.nbytes


class PrivatePartition(Partition):
    """A parameter before there is an engine: each rank keeps a part of it in its own memory."""

    _kept: torch.Tensor | None = None

    def __init__(
        self,
        parameter: nn.Parameter,
        communicator: _C.Communicator,
        ranks: tuple[int, ...] | None = None,
        home: torch.device | None = None,
        label: str = "",
    ) -> None:
        """`ranks`: those of the communicator in the job, where they are not all. `home`: the device
        of this rank's part; None: the parameter's. `label`: of the collective that gives every rank
        its part of the first rank's values; without it all ranks have the same values."""
        values, shape = parameter.detach().flatten(), parameter.shape
        # Before it counts as sharded: zero.Init gathers such ones for the program's own writes.
        parameter.data = values.new_empty(0)
        self._manage(parameter, shape, communicator, ranks)
        self._kept = values.new_zeros(self._shard_numel, device=home)
        if label and communicator.world_size > 1:
            self._store_first(values, label)
        else:
            self.store(values)
        self.parameter.ds_tensor = self._shard.as_subclass(OwnPart)
        moved(values.nbytes)

    def shard_alike(self, parameter: nn.Parameter) -> None:
        """Shards another one over the same ranks. Values are those of the first. Collective."""
        parameter.data = parameter.data.to(self._empty.device)
        label = "values of a parameter that is made later"
        PrivatePartition(parameter, self.communicator, self.ranks, self._shard.device, label)

    def _manage(
        self,
        parameter: nn.Parameter,
        shape: torch.Size,
        communicator: _C.Communicator,
        ranks: tuple[int, ...] | None,
    ) -> None:
        self.communicator, self.ranks, self._holders = communicator, ranks, 0
        numel = shape.numel()
        self._shard_numel = max(1, -(-numel // communicator.world_size))
        begin = min(numel, communicator.rank * self._shard_numel)
        self._own = slice(begin, min(numel, begin + self._shard_numel))
        self._empty = parameter.detach().new_empty(0)
        Partition.__init__(self, parameter, shape)

    def _write_own(self, shard: torch.Tensor, begin: int, piece: torch.Tensor) -> None:
        """Writes what is this rank's of a piece."""
        first = max(begin, self._own.start)
        last = min(begin + piece.numel(), self._own.stop)
        if first < last:
            at = first - self._own.start
            shard[at : at + last - first].copy_(piece[first - begin : last - begin])

    def _store_first(self, values: torch.Tensor, label: str) -> None:
        """Takes the first rank's values, in pieces, so that others need no memory for all."""
        values = values.resolve_conj().resolve_neg()
        is_first = self.communicator.rank == 0
        for begin, end in pieces_of(values.numel(), values.element_size()):
            piece = values[begin:end] if is_first else values.new_empty(end - begin)
            self.communicator.broadcast(piece.view(torch.uint8), 0, label)
            self._write_own(self._shard, begin, piece)

    def pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The full values where parts are kept: flat pieces, and where each begins. Collective."""
        world_size, shard_numel = self.communicator.world_size, self._shard_numel
        label = f"parameter {self.parameter.ds_id}"
        pieces = list(pieces_of(shard_numel, self._shard.element_size() * world_size))
        memory = self._shard.new_empty(world_size * pieces[0][1])
        for begin, end in pieces:
            count = end - begin
            rows = memory[: world_size * count]
            self.communicator.all_gather(as_bytes(self._shard[begin:end]), as_bytes(rows), label)
            if count == shard_numel:
                yield 0, rows[: self.numel]
                return
            for rank, piece in enumerate(rows.view(world_size, count)):
                at = rank * shard_numel + begin
                if at < self.numel:
                    yield at, piece[: self.numel - at]

    @property
    def _shard(self) -> torch.Tensor:
        """This rank's part, with padding."""
        assert self._kept is not None
        return self._kept

    @property
    def available(self) -> bool:
        return self._holders > 0

    def local_numel(self) -> int:
        return self._own.stop - self._own.start

    def acquire(self) -> None:
        self._holders += 1
        if self._holders > 1:
            return
        full = self._shard.new_empty(self._shard_numel * self.communicator.world_size)
        label = f"read of parameter {self.parameter.ds_id} under zero.Init"
        self.communicator.all_gather(as_bytes(self._shard), as_bytes(full), label)
        self.parameter.data = full[: self.numel].view(self.shape).to(self._empty.device)

    def release(self) -> None:
        if self._holders == 1:  # while it is available: zero.Init gathers for other writes
            self.parameter.data = self._empty
        self._holders -= 1

    def store(self, values: torch.Tensor) -> None:
        if values.dtype != self._shard.dtype:  # the program has cast it, within zero.Init
            self._kept, self._empty = (t.to(values.dtype) for t in (self._shard, self._empty))
            self.parameter.ds_tensor = self._shard.as_subclass(OwnPart)
        own = values.detach().flatten()[self._own]
        self._shard[: own.numel()].copy_(own)

    def broadcast(self, values: torch.Tensor, root: int) -> None:
        self.communicator.broadcast(as_bytes(values), root, f"parameter {self.parameter.ds_id}")

    def copy(self, memo: dict[int, Any]) -> nn.Parameter:
        """Partitioned like this one while this one is empty."""
        partitioned = not self.available
        made = super().copy(memo)
        if partitioned:
            PrivatePartition(made, self.communicator, self.ranks, self._shard.device)
        return made


# --- values for a model on the meta device, module by module, so that no rank holds all of them ---

Initializer = Callable[[nn.Module], object]


def materialize(
    model: nn.Module,
    communicator: _C.Communicator,
    *,
    device: torch.device,
    init: Initializer | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Gives everything of the model that is on the meta device values. Collective.

    Parameters stay the objects that they are, and get rank 0's values. Until an engine takes them
    each rank keeps its part, as under zero.Init, or nothing where `weights` has the values, which
    are read when the engine has memory for them.

    - `device`: where values are made; parts then wait in host memory, one module's on a GPU at a
      time.
    - `init`: writes the values of a module's own parameters and buffers; default: the module's
      ``reset_parameters()``.
    - `weights`: values by name as in ``model.state_dict()``, read one at a time; only rank 0's are
      used, the others may give ``{}``. `init` is asked for what they cannot have (buffers that
      no state dict holds).

    Raises ConfigError naming what has no value then, or no place in the model.
    """
    with all_or_none(communicator, "zerorun.shard"):
        source = None if weights is None else _Weights(model, weights, communicator.rank == 0)
    have = {} if source is None else source.names
    with torch.no_grad():
        for path, module in model.named_modules():
            metas = {name: tensor for name, tensor in _own(module) if tensor.is_meta}
            if not metas:
                continue
            label = f"initial values of {path}"
            if source is not None and have.keys() >= set(metas.values()):
                for name, tensor in list(metas.items()):
                    if isinstance(tensor, nn.Parameter):
                        _Unread(metas.pop(name), communicator, device, source, label)
            if not metas:
                continue
            with all_or_none(communicator, "zerorun.shard"), _held(module):
                for tensor in metas.values():
                    torch.utils.swap_tensors(tensor, _unset_like(tensor, device))
                _fill(path, module, metas, init, source)
            for tensor in metas.values():
                if isinstance(tensor, nn.Parameter):
                    PrivatePartition(tensor, communicator, home=torch.device("cpu"), label=label)
                elif tensor in have and not tensor.is_floating_point():  # the engine shares floats
                    share(tensor, communicator, label)


def _own(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The module's own parameters and buffers."""
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)


@contextlib.contextmanager
def _held(module: nn.Module) -> Iterator[None]:
    """A module's parameters that have values already, since they are tied to another module's: full
    for the block, and what they were after it."""
    tied = [p for p in module.parameters(recurse=False) if not p.is_meta]
    whole = [(p, p.clone()) for p in tied if partition_of(p) is None]
    with gathered(tied):  # a copy, which is dropped
        try:
            yield
        finally:
            for parameter, values in whole:
                parameter.copy_(values)


class _Weights:
    """Values from outside, which must be those of the model, no fewer and no more."""

    def __init__(
        self, model: nn.Module, values: Mapping[str, torch.Tensor], is_source: bool
    ) -> None:
        self._values = values
        self._is_source = is_source
        self.names: dict[torch.Tensor, str] = {}  # for a tied one that which has a value
        for name, tensor in _saved(model):
            if name in values or tensor not in self.names:
                self.names[tensor] = name
        if not is_source:
            return
        known = {name for name, _ in _saved(model)}
        missing = [n for t, n in self.names.items() if t.is_meta and n not in values]
        unknown = [name for name in values if name not in known]
        if missing or unknown:
            raise _C.ConfigError(
                f"weights: {_some(missing)} of the model's names are missing, and {_some(unknown)} "
                "are not the model's: give the values of one state dict of this model"
            )

    def read(self, name: str, shape: torch.Size) -> torch.Tensor | None:
        """The value; None on ranks whose values are not used."""
        if not self._is_source:
            return None
        value = self._values[name]
        if not isinstance(value, torch.Tensor):
            raise _C.ConfigError(f"weights: {name} is {type(value)}, expected a tensor")
        if value.shape != shape:
            raise _C.ConfigError(
                f"weights: {name} has shape {tuple(value.shape)}, expected the model's "
                f"{tuple(shape)}"
            )
        return value

    def write(self, tensor: torch.Tensor) -> None:
        """The tensor's value; on ranks whose values are not used, zero."""
        value = self.read(self.names[tensor], tensor.shape)
        if value is None:
            tensor.zero_()
        else:
            copy_in_pieces(tensor, value)


class _Unread(PrivatePartition):
    """A parameter whose values are read, piece by piece, when somebody asks for them. An engine
    does, which needs no more memory than its own then."""

    def __init__(
        self,
        parameter: torch.Tensor,
        communicator: _C.Communicator,
        device: torch.device,
        source: _Weights,
        label: str,
    ) -> None:
        """`parameter`: on the meta device. `label`: of the collective."""
        self._source, self._name, self._label = source, source.names[parameter], label
        shape = parameter.shape
        empty = torch.empty(0, dtype=parameter.dtype, device=device)
        assert isinstance(parameter, nn.Parameter)
        torch.utils.swap_tensors(parameter, _like(parameter, empty))
        self._manage(parameter, shape, communicator, None)

    @property
    def _shard(self) -> torch.Tensor:
        if self._kept is None:
            self._kept = self._empty.new_zeros(self._shard_numel, device="cpu")
            for begin, piece in self._read():
                self._write_own(self._kept, begin, piece)
            self.parameter.ds_tensor = self._kept.as_subclass(OwnPart)
        return self._kept

    def pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        return self._read() if self._kept is None else super().pieces()

    def _read(self) -> Iterator[tuple[int, torch.Tensor]]:
        with all_or_none(self.communicator, "zerorun.shard"):
            value = self._source.read(self._name, self.shape)
            values = None if value is None else value.detach().contiguous().view(-1)
        itemsize = self._empty.element_size()
        memory = self._empty.new_empty(min(self.numel, PIECE // itemsize), device="cpu")
        for begin, end in pieces_of(self.numel, itemsize):
            piece = memory[: end - begin]
            if values is not None:
                piece.copy_(values[begin:end])
                forget_pages(values[begin:end])
            self.communicator.broadcast(piece.view(torch.uint8), 0, self._label)
            yield begin, piece


def _saved(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a state dict, with all names of a tied tensor and those without wrappers."""
    for path, module in model.named_modules(remove_duplicate=False):
        for name, tensor in _own(module):
            if name not in module._non_persistent_buffers_set:
                whole = f"{path}.{name}" if path else name
                yield from ((each, tensor) for each in (plain_name(whole), whole))


def _some(names: list[str]) -> str:
    return f"{len(names)} ({', '.join(names[:5])})" if names else "none"


def _like(meta: nn.Parameter, values: torch.Tensor) -> nn.Parameter:
    parameter = nn.Parameter(values, requires_grad=meta.requires_grad)
    vars(parameter).update(vars(meta))
    return parameter


def _unset(dtype: torch.dtype) -> float:
    """What programs write least: no zero, where there are no numbers below it."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.nan
    return dtype != torch.bool and (torch.iinfo(dtype).min or torch.iinfo(dtype).max)


def _unset_like(meta: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Memory in which a value that was never written shows."""
    values = torch.full_like(meta, _unset(meta.dtype), device=device)
    return _like(meta, values) if isinstance(meta, nn.Parameter) else values


def _is_unset(tensor: torch.Tensor) -> bool:
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    if tensor.dtype == torch.bool:
        return False
    unset = tensor == _unset(tensor.dtype)
    return bool(unset.all() if tensor.element_size() == 1 else unset.any())  # a byte may be any


def _take_assigned(module: nn.Module, metas: Mapping[str, torch.Tensor]) -> None:
    """Buffers that a program has assigned instead of writing into them, as it does with tables."""
    for name, tensor in metas.items():
        assigned = module._buffers.get(name)
        if assigned is not None and assigned is not tensor and not assigned.is_meta:
            torch.utils.swap_tensors(tensor, assigned.detach().to(tensor.device, copy=True))
            module._buffers[name] = tensor


def _fill(
    path: str,
    module: nn.Module,
    metas: Mapping[str, torch.Tensor],
    init: Initializer | None,
    weights: _Weights | None,
) -> None:
    """Writes one module's values."""
    given = {n: t for n, t in metas.items() if weights is not None and t in weights.names}
    if len(given) < len(metas):
        if init is not None:
            init(module)
        elif hasattr(module, "reset_parameters"):
            cast("Any", module).reset_parameters()
        _take_assigned(module, metas)
    for tensor in given.values():
        assert weights is not None
        weights.write(tensor)
    unset = [n for n, tensor in metas.items() if n not in given and _is_unset(tensor)]
    if unset:
        means = "init" if init is not None else "reset_parameters"
        without = "" if init is not None or hasattr(module, means) else ", which it does not have,"
        raise _C.ConfigError(
            f"module '{path}' ({type(module).__name__}) on the meta device: {means}(){without} "
            f"gave no value to {_some(unset)}: give zerorun.shard an init= that writes them, or "
            "their values in weights="
        )
