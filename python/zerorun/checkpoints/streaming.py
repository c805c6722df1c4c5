"""A model in flat buckets, one after the other, for an engine elsewhere that generates with it; and
the whole model on one rank."""

import contextlib
import functools
import hashlib
import os
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none, texts_of_all
from zerorun.model.engine_ranks import EngineRanks, is_marked
from zerorun.model.partition import gathered, partition_of
from zerorun.model.tensors import is_distributed, local_of, place, whole_of
from zerorun.model.units import plain_name
from zerorun.whole_file import replacing

_ALIGNMENT = 16  # bytes: a view of any dtype may begin there
_SLICE = 1 << 20  # elements that are hashed at once
_KEPT_STEPS = 4  # whose hashes are kept
_BITS = {1: torch.uint8, 2: torch.int16}  # others as several of 16 bits


@dataclass(frozen=True)
class StreamedTensor:
    """A tensor of a bucket. `offset`: bytes. `tied`: its other names in the model."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    offset: int
    tied: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


@dataclass(frozen=True)
class ParameterBucket:
    """Whole tensors in one flat piece of memory, which can be sent as it is.

    `data`: uint8, on the model's device; None on ranks other than `owner` (`owners="rank0"`).
    """

    owner: int
    tensors: tuple[StreamedTensor, ...]
    data: torch.Tensor | None

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors, views of `data`; nothing where that is None."""
        if self.data is not None:
            for each in self.tensors:
                part = self.data[each.offset : each.offset + each.nbytes]
                yield each.name, part.view(each.dtype).view(each.shape)


@dataclass(frozen=True)
class _Source:
    name: str
    tied: tuple[str, ...]
    values: torch.Tensor


class _Round:
    """Buckets that all ranks yield at the same time: one, or one of each rank."""

    def __init__(self, owners: int, rank: int, capacity: int, device: torch.device) -> None:
        self._rank, self._capacity = rank, capacity
        self._sizes = [0] * owners
        self._tensors: list[list[StreamedTensor]] = [[] for _ in range(owners)]
        self._data = torch.empty(0, dtype=torch.uint8, device=device)

    def __bool__(self) -> bool:
        return any(self._tensors)

    def add(self, source: _Source) -> bool:
        """Takes a copy if there is room: a tensor that is larger than a bucket has one alone."""
        owner = self._sizes.index(min(self._sizes))
        offset = self._sizes[owner]
        values = source.values
        if offset > 0 and offset + values.nbytes > self._capacity:
            return False
        tensor = StreamedTensor(source.name, values.shape, values.dtype, offset, source.tied)
        self._tensors[owner].append(tensor)
        self._sizes[owner] = offset + -(-values.nbytes // _ALIGNMENT) * _ALIGNMENT
        if owner == self._rank:
            if self._data.nbytes < offset + values.nbytes:  # the first one
                self._data = self._data.new_empty(max(self._capacity, values.nbytes))
            place = self._data[offset : offset + values.nbytes]
            place.view(values.dtype).view(values.shape).copy_(values)
        return True

    def bucket(self) -> ParameterBucket:
        own = self._rank if self._rank < len(self._sizes) else 0
        data = self._data[: self._sizes[own]] if own == self._rank else None
        return ParameterBucket(own, tuple(self._tensors[own]), data)


class ParameterStream(Iterator[ParameterBucket]):
    """What ``engine.stream_parameters()`` returns.

    `tensors`, `changed`: how many the model has and how many were given, complete at the end. It
    ends with a step, another stream, or the engine.
    """

    def __init__(
        self,
        engine: Any,
        bucket_bytes: int,
        dtype: torch.dtype | None,
        owners: str,
        changed_since: int | None,
        merge_adapters: bool,
    ) -> None:
        self.tensors = self.changed = 0
        self._engine = engine
        self._dtype, self._since = dtype, changed_since
        self._step = engine.global_steps
        self._ended_by: str | None = None
        model, ranks = engine.module, engine._ranks
        with all_or_none(ranks.job, "stream_parameters"):
            self._check(bucket_bytes, owners, merge_adapters)
        # Ranks that disagree would wait for each other's gathers.
        told = repr((bucket_bytes, owners, merge_adapters, dtype, changed_since, self._step))
        if len(set(texts_of_all(told, ranks.job))) > 1:
            raise _C.ConfigError(
                "stream_parameters: ranks disagree about its arguments or their step; this rank: "
                f"(bucket_bytes, owners, merge_adapters, dtype, changed_since, step) = {told}"
            )
        check_one_model(model, ranks)
        self._adapters = MergedAdapters(model) if merge_adapters else None
        count = ranks.job.world_size if owners == "all" else 1
        tensors = [(shape.numel(), p.dtype) for p, shape in engine._layout.shapes.items()]
        tensors += [(buffer.numel(), buffer.dtype) for buffer in model.buffers()]
        widest = 0 if dtype is None else dtype.itemsize
        # No more than is enough for the whole model.
        room = sum(n * max(own.itemsize, widest) + _ALIGNMENT for n, own in tensors)
        capacity = min(bucket_bytes, room)
        self._round_of = count, ranks.job.rank, capacity, engine.device
        engine._shards.release_all()
        engine._shards.finish_updates()
        self._buckets = self._stream(model)

    def __next__(self) -> ParameterBucket:
        self._engine._check_open("stream_parameters")
        if self._ended_by is not None:
            raise _C.ConfigError(
                f"stream_parameters: began after step {self._step} and was ended by "
                f"{self._ended_by}: iterate to the end before that, or break"
            )
        return next(self._buckets)

    def close(self, ended_by: str | None = None) -> None:
        """Gives back what is gathered, as the end of the iteration does."""
        self._buckets.close()
        self._ended_by = ended_by

    def _check(self, bucket_bytes: Any, owners: Any, merge_adapters: Any) -> None:
        if type(bucket_bytes) is not int or bucket_bytes < 1:
            raise _fault("bucket_bytes", bucket_bytes, "a number of bytes from 1 on")
        if owners not in ("rank0", "all"):
            raise _fault("owners", owners, '"rank0" or "all"')
        dtype = self._dtype
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise _fault("dtype", dtype, "a floating-point torch.dtype, or None: the model's")
        if type(merge_adapters) is not bool:
            raise _fault("merge_adapters", merge_adapters, "True or False")
        since = self._since
        if since is not None and (type(since) is not int or not 0 <= since <= self._step):
            raise _fault("changed_since", since, f"a step from 0 to {self._step}, or None")

    def _stream(self, model: nn.Module) -> Generator[ParameterBucket]:
        streamed = self._engine._streamed_hashes
        before = streamed.get(self._since, {})
        hashes: dict[str, bytes] = {}
        current = _Round(*self._round_of)
        for source in self._sources(model):
            self.tensors += 1
            if self._since is not None:
                hashes[source.name] = _hash_of(source.values)
                if before.get(source.name) == hashes[source.name]:
                    continue
            self.changed += 1
            if not current.add(source):
                yield self._finished(current)
                current = _Round(*self._round_of)
                current.add(source)
        if current:
            yield self._finished(current)
        if self._since is not None:
            streamed[self._step] = hashes
            for step in sorted(streamed)[:-_KEPT_STEPS]:
                del streamed[step]

    def _finished(self, filled: _Round) -> ParameterBucket:
        bucket = filled.bucket()
        if bucket.data is not None and bucket.data.is_cuda:
            # The program's collectives between two buckets must not meet gathers under way.
            torch.cuda.current_stream(bucket.data.device).synchronize()
        return bucket

    def _sources(self, model: nn.Module) -> Iterator[_Source]:
        """Parameters, gathered one unit at a time, then buffers that a state dict has."""
        state = model.state_dict(keep_vars=True)
        tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
        names: dict[int, list[str]] = {}
        for key, value in tensors.items():
            names.setdefault(id(value), []).append(self._name(key))
        gathered: Iterable[tuple[str, Any]] = full_parameters_of(model)
        for name, parameter in gathered:
            first, *tied = names.get(id(parameter), [self._name(name)])
            if self._adapters is not None and parameter in self._adapters.left_out:
                continue
            values = whole_of(parameter)
            if self._adapters is not None:
                values = self._adapters.merged(parameter, values)
            if self._dtype is not None and values.is_floating_point():
                values = values.to(self._dtype)
            yield _Source(first, tuple(tied), values)
        for value in {id(value): value for value in tensors.values()}.values():
            if not isinstance(value, nn.Parameter):
                first, *tied = names[id(value)]
                yield _Source(first, tuple(tied), whole_of(value))

    def _name(self, key: str) -> str:
        name = plain_name(key)
        return name if self._adapters is None else self._adapters.name(name)


def _hash_of(values: torch.Tensor) -> bytes:
    """Of shape, dtype and bits, the same on every device: those that differ in one element have the
    same hash with a probability of 2^-48 (multiply-shift hashing, Dietzfelbinger et al. 1997)."""
    found = hashlib.blake2b(repr((values.shape, values.dtype)).encode(), digest_size=16)
    bits = values.contiguous().flatten().view(_BITS.get(values.dtype.itemsize, torch.int16))
    factors = _factors(values.device)
    for part in bits.split(_SLICE):
        found.update(repr((part.long() * factors[: part.numel()]).sum().item()).encode())
    return found.digest()


@functools.cache
def _factors(device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(20261127)
    low, high = -(1 << 63), (1 << 63) - 1
    return torch.randint(low, high, (_SLICE,), generator=generator, device="cpu").to(device) | 1


def _fault(argument: str, got: Any, expected: str) -> _C.ConfigError:
    return _C.ConfigError(f"stream_parameters: {argument}: got {got!r}, expected {expected}")


# --- the weights of PEFT's adapters within those that they adapt, one parameter at a time ---

_PREFIX = "base_model.model."  # of a PeftModel's modules


class MergedAdapters:
    """A model without its adapters, whose weights are those that PEFT's own merge() makes."""

    def __init__(self, model: nn.Module) -> None:
        """Raises ConfigError where adapters are merged already."""
        self._layers: dict[nn.Parameter, Any] = {}  # those that adapt a parameter
        self.left_out: set[nn.Parameter] = set()
        for name, module in model.named_modules():
            if hasattr(module, "modules_to_save") and hasattr(module, "original_module"):
                self.left_out.update(module.original_module.parameters())
            elif hasattr(module, "get_base_layer") and hasattr(module, "merged_adapters"):
                if module.merged_adapters:
                    raise _C.ConfigError(
                        f"stream_parameters: merge_adapters: {name} has merged adapters already: "
                        "unmerge_adapter() first, or stream without merge_adapters"
                    )
                adapted = dict.fromkeys(module.get_base_layer().parameters(), module)
                self._layers |= adapted
                self.left_out |= set(module.parameters()) - adapted.keys()

    def name(self, name: str) -> str:
        """The name in the model without adapters."""
        parts = name.removeprefix(_PREFIX).split(".")
        if "modules_to_save" in parts:  # modules_to_save.default
            at = parts.index("modules_to_save")
            del parts[at : at + 2]
        return ".".join(part for part in parts if part != "base_layer")

    def merged(self, parameter: nn.Parameter, values: torch.Tensor) -> torch.Tensor:
        """`values`, or those with the active adapters. Collective where adapters are sharded."""
        layer = self._layers.get(parameter)
        if layer is None or layer.disable_adapters:
            return values
        with gathered(layer.parameters()), _copied(layer.get_base_layer()), torch.no_grad():
            layer.merge()
            layer.merged_adapters.clear()
            return local_of(parameter)


@contextlib.contextmanager
def _copied(module: nn.Module) -> Iterator[None]:
    """Lets the module's parameters be written; they are as before afterwards."""
    before = [(parameter, local_of(parameter)) for parameter in module.parameters()]
    try:
        for parameter, values in before:
            place(parameter, values.clone())
        yield
    finally:
        for parameter, values in before:
            place(parameter, values)


# --- the whole model: parameter by parameter for whoever takes them over, or on one rank ---

_Named = tuple[str, nn.Parameter]


def full_parameters_of(model: nn.Module) -> Iterator[_Named]:
    """Each parameter once, under its first name, full until the next one is asked for. Collective.

    Those that are gathered together follow each other, so each is gathered once.
    """
    together: dict[Any, list[_Named]] = {}
    for name, parameter in model.named_parameters():
        unit = getattr(partition_of(parameter), "unit", parameter)
        together.setdefault(unit, []).append((plain_name(name), parameter))
    for members in together.values():
        with gathered([members[0][1]]):
            yield from members


def full_state_dict(
    model: nn.Module, ranks: EngineRanks, exclude_frozen: bool = False, *, everywhere: bool = False
) -> dict[str, torch.Tensor] | None:
    """The model's state dict in its own dtype, copied to host memory: rank 0's, None on the others,
    unless it is wanted `everywhere`. Names are those of the model that is not compiled.

    Collective. Parameters are gathered one unit at a time. Tied parameters share their copy.
    DTensors become whole. Raises ConfigError where a model is divided among ranks otherwise.
    """
    check_one_model(model, ranks)
    keep = everywhere or ranks.data.rank == 0  # of a DTensor, the first replica's ranks
    copies: dict[nn.Parameter, torch.Tensor] = {}
    for _, parameter in full_parameters_of(model):
        if keep and (parameter.requires_grad or not exclude_frozen):
            copies[parameter] = whole_of(parameter).to("cpu", copy=True)
    ranks.job.barrier("full state dict")
    if not everywhere and ranks.job.rank > 0:
        return None
    state: dict[str, torch.Tensor] = {}
    for key, value in model.state_dict(keep_vars=True).items():
        name = plain_name(key)
        if not isinstance(value, nn.Parameter):
            tensor = isinstance(value, torch.Tensor)
            state[name] = whole_of(value).to("cpu", copy=True) if tensor else value
        elif value in copies:
            state[name] = copies[value]
    return state


def check_one_model(model: nn.Module, ranks: EngineRanks) -> None:
    """Raises ConfigError where no rank can make the whole model."""
    if ranks.experts:
        raise _C.ConfigError(
            "the whole model on one rank: its experts are on different ranks: "
            "engine.save_checkpoint() saves them all, and `zerorun ckpt export DIR OUTPUT` makes "
            "one model of that"
        )
    if ranks.model_size == 1:
        return
    whole = ranks.mesh is not None and ranks.mesh.of_dtensors
    for name, parameter in model.named_parameters():
        if whole and (is_distributed(parameter) or not is_marked(parameter)):
            continue
        raise _C.ConfigError(
            f"the whole model on one rank: it is divided among {ranks.model_size} model-parallel "
            f"ranks, and only its own code knows how {name} is: engine.save_checkpoint() saves all "
            "parts, engine.module.state_dict() below stage 3 is this rank's part"
        )


def save_full_state(
    model: nn.Module,
    ranks: EngineRanks,
    directory: str | os.PathLike[str],
    filename: str,
    exclude_frozen: bool = False,
) -> None:
    """Writes full_state_dict into `directory`/`filename`, on rank 0. Collective.

    The file is complete or not there. Raises IoError on every rank.
    """
    state = full_state_dict(model, ranks, exclude_frozen)
    with all_or_none(ranks.job, "saving the model"):
        if state is not None:
            os.makedirs(directory, exist_ok=True)
            with replacing(os.path.join(directory, filename)) as file:
                torch.save(state, file)
