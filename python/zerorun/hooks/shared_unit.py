"""Units of a stage-3 engine, whose parameters come and go: their memory, how reads find them, and
which modules' calls gather them.

While a call of the unit holds them, reads are those of a plain dictionary.
"""

import functools
import inspect
import math
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.hooks.parameter_memory import full_view, tensor_of
from zerorun.model.model_layout import ModelLayout
from zerorun.model.partition import partition_of
from zerorun.model.tensors import CORE_DTYPES, LocalData, is_distributed, is_empty, place
from zerorun.model.units import COMPILED, Unit


class SharedUnit(_C.ParameterSwitch):
    """A unit of an engine: full while acquired, empty for this rank otherwise."""

    def __init__(
        self,
        unit: Unit,
        core: _C.Engine,
        layout: ModelLayout,
        full: Mapping[nn.Parameter, torch.Tensor],
    ) -> None:
        super().__init__(core, unit.name)
        self.name, self.module = unit.name, unit.module
        self.parameters = unit.parameters
        self.full = {parameter: full[parameter] for parameter in unit.parameters}
        self.forwards = 0  # calls of forward that hold it
        sharded = {p: core.is_sharded(layout.ids[p]) for p in unit.parameters}
        self._always_full = [p for p in unit.parameters if not sharded[p]]  # they are small
        self.sharded = any(sharded.values())
        for parameter, values in self.full.items():
            if sharded[parameter]:
                holder = LocalData(parameter) if is_distributed(parameter) else parameter
                self.add(
                    holder, values, _empty(values.dtype, values.device), layout.names[parameter]
                )

    def place(self) -> None:
        """Points the parameters at the engine's memory; from here on they come and go."""
        for parameter in self._always_full:
            place(parameter, self.full[parameter])
        self.acquire()
        self.release()


@functools.cache
def _empty(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """One for all parameters, so that it stays in the processor's cache."""
    with torch.inference_mode(False):  # engines of either mode have it
        return torch.empty(0, dtype=dtype, device=device)


# --- memory ---


class BucketMemory:
    """Memory for full parameters: one storage per bucket, which has memory while the engine keeps
    the bucket gathered.

    What autograd saved of a parameter (its transpose, say) views that storage, and so has the
    values again when backward has gathered them. The engine keeps this, so this must not keep
    tensors of the engine's.

    On the host it is the core's, where buckets use the same pages in turn: PyTorch's allocator
    would get new ones for each gather, and the system clears each before it is used. On a GPU it is
    that of PyTorch's allocator, which knows the streams.
    """

    def __init__(self, core: _C.Engine, device: torch.device) -> None:
        self._flat: dict[int, torch.Tensor] = {}  # by bucket
        self._device = device
        self._pool = _C.PagePool() if device.type == "cpu" else None
        self.serve(core)

    def serve(self, core: _C.Engine) -> None:
        """From now on the engine gathers into this memory; copies that nobody holds are dropped."""
        if self._pool is not None:
            self._pool.serve(core)
        else:
            core.use_full_memory(self._acquire, self.empty, torch.cuda.OutOfMemoryError)

    def flat(self, bucket: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """A bucket of `numel` elements. Before the first gather."""
        if bucket not in self._flat:
            if self._pool is not None:
                made = tensor_of(self._pool.reserve(bucket, numel * dtype.itemsize)).view(dtype)
            else:
                made = torch.empty(numel, dtype=dtype, device=self._device)
            self._flat[bucket] = made
        return self._flat[bucket]

    def empty(self, bucket: int) -> None:
        """Once its views are made: a GPU that made all buckets first would hold the whole model."""
        if self._pool is not None:
            return  # it never had memory
        flat = self._flat[bucket]
        if flat.is_cuda:  # which may be another stream than the one that it was allocated on
            flat.record_stream(torch.cuda.current_stream(flat.device))
        flat.untyped_storage().resize_(0)

    def _acquire(self, bucket: int) -> int:
        flat = self._flat[bucket]
        flat.untyped_storage().resize_(flat.nbytes)
        return flat.data_ptr()


def full_parameters(
    core: _C.Engine, layout: ModelLayout, memory: BucketMemory
) -> dict[nn.Parameter, torch.Tensor]:
    """Tensors of the full parameters, to be used while the engine has them gathered.

    Parameters that the ranks of a host share, or that stay full, are in the engine's memory; others
    come and go in `memory`.
    """
    full = {}
    buckets: dict[int, list[tuple[nn.Parameter, tuple[int, int, int]]]] = {}
    for parameter, index in layout.ids.items():
        place = core.full_place(index)
        if place is None:
            full[parameter] = full_view(core, layout, parameter)
        else:
            buckets.setdefault(place[0], []).append((parameter, place))
    for bucket, members in buckets.items():
        for parameter, (_, begin, numel) in members:
            dtype = CORE_DTYPES[layout.core_dtype(parameter) or core.param_dtype]
            count = math.prod(layout.stored_shape(parameter))
            part = memory.flat(bucket, numel, dtype)[begin : begin + count]
            full[parameter] = layout.shaped(parameter, part)
        memory.empty(bucket)
    return full


# --- reads ---


class PlainParameters(dict[str, Any]):
    """A module's `_parameters` while they are full."""

    __slots__ = ("module", "reads")
    module: weakref.ref[nn.Module]
    reads: Any  # GatherHooks: `read` and `read_as_cast` say what a read gives

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class WatchedParameters(PlainParameters):
    """The same while nobody holds them for the module."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        parameter, module = super().__getitem__(name), self.module()
        if parameter is None or module is None:
            return parameter
        return self.reads.read(module, parameter)


class CastParameters(WatchedParameters):
    """The same under autocast, of a module that gives its parameters to a product."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        parameter, module = super().__getitem__(name), self.module()
        if (
            parameter is not None
            and module is not None
            and not torch.compiler.is_compiling()  # compiled code casts by itself
            and torch.is_autocast_enabled(parameter.device.type)
            # The product alone, which reads through nn.Module.__getattr__; hooks get the parameter.
            and sys._getframe(2).f_code is type(module).forward.__code__
        ):
            return self.reads.read_as_cast(parameter)
        return parameter


# Forwards that give their parameters to a product and to nothing else.
_PRODUCTS = {
    kind.forward
    for kind in (
        *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
        *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    )
}


def watch_reads(module: nn.Module, unit_of: Mapping[nn.Parameter, SharedUnit], reads: Any) -> None:
    """From here on `reads` says what a read of the module's parameters gives."""
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    units = {unit_of[p] for p in own if p in unit_of and is_empty(p)}
    if not units:
        return
    is_product = type(module).forward in _PRODUCTS and "forward" not in vars(module)
    cast = CastParameters if is_product else None
    several = len(units) > 1  # one may be empty while another is full
    parameters = ((several and cast) or WatchedParameters)(module._parameters)
    parameters.module, parameters.reads = weakref.ref(module), reads
    module._parameters = parameters
    if not several:
        kinds = WatchedParameters, PlainParameters, cast or PlainParameters
        units.pop().add_reader(parameters, *kinds)


# --- where hooks go: on units, on what is not inside of one, and on users of others' parameters ---


def gathered_at(
    model: nn.Module, units: Iterable[Unit], unit_of: Mapping[nn.Parameter, SharedUnit]
) -> dict[nn.Module, list[SharedUnit]]:
    """The modules whose calls gather something, and what: the units' modules, and those with
    parameters that no call of a unit's module around them has gathered. The model itself is one of
    them, for what its forward reads of others."""
    names = {unit.module: unit.name for unit in units if unit.name}
    # A compiled model calls what the wrapper of a compiled block contains, without the wrapper.
    for module, name in list(names.items()):
        inner = getattr(module, COMPILED, None)
        if inner is not None:
            names[inner] = name
    found: dict[nn.Module, list[SharedUnit]] = {model: []}
    seen: set[tuple[nn.Module, frozenset[SharedUnit]]] = set()

    def visit(module: nn.Module, held: frozenset[SharedUnit]) -> None:
        if (module, held) in seen:
            return
        seen.add((module, held))
        name = names.get(module)
        own = _gathered_by(module, name, unit_of)
        if name or not held.issuperset(own) or (own and _reads_unnoticed(module)):
            found[module] = own
        # The elements of containers are called on their own.
        has_forward = type(module).forward is not nn.Module.forward or "forward" in vars(module)
        if name and has_forward:
            held |= frozenset(own)
        for child in module.children():
            visit(child, held)

    visit(model, frozenset())
    return found


def _gathered_by(
    module: nn.Module, name: str | None, unit_of: Mapping[nn.Parameter, SharedUnit]
) -> list[SharedUnit]:
    """For a call of the module. `name`: of the unit that it is the module of."""
    parameters: Sequence[nn.Parameter] = list(module.parameters(recurse=name is not None))
    units = dict.fromkeys(unit_of[p] for p in parameters if p in unit_of)
    # Forward may skip the units further inside (experts), which have their own hooks.
    return [
        unit for unit in units if unit.sharded and not (name and unit.name.startswith(name + "."))
    ]


def _reads_unnoticed(module: nn.Module) -> bool:
    """True where a call without the unit's would not be noticed: RNNs have a list of their
    parameters, and a generator reads them when its module runs no more."""
    return isinstance(module, nn.RNNBase) or inspect.isgeneratorfunction(module.forward)


# --- parameters that a module uses in its forward but does not own ---

_registered: weakref.WeakKeyDictionary[nn.Module, list[nn.Parameter]] = weakref.WeakKeyDictionary()


def register_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Declares that `module` uses `parameter` in forward although another module owns it.

    The parameter is then gathered for forward and backward of `module`, also of a call that is
    running. Accesses through an
    attribute of the owning module are detected without this; call it if the parameter is reached in
    another way. May be called before and after zerorun.initialize. Raises ConfigError for arguments
    of other types.
    """
    if not isinstance(module, nn.Module) or not isinstance(parameter, nn.Parameter):
        raise _C.ConfigError(
            f"register_external_parameter: got {type(module)} and {type(parameter)}, expected a "
            "module and a parameter"
        )
    known = _registered.setdefault(module, [])
    if not any(p is parameter for p in known):
        known.append(parameter)
    partition = partition_of(parameter)
    if partition is not None:
        partition.watch(module)


def unregister_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Undoes :func:`register_external_parameter`."""
    known = _registered.get(module, [])
    known[:] = [p for p in known if p is not parameter]


# A plain dictionary, looked at before each call of a module.
registered: dict[Any, Any] = _registered.data  # type: ignore[attr-defined]


def external_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The registered ones that an engine shards."""
    known = _registered.get(module, ())
    found = [(p, partition_of(p)) for p in known]
    return [p for p, partition in found if partition is not None and partition.in_engine]
