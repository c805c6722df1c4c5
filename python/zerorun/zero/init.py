"""zero.Init: a model whose parameters are partitioned as soon as each module is made."""

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from zerorun import _C, communicator, torch_seam
from zerorun import config as configuration
from zerorun.device import local_device, make_current
from zerorun.model.engine_ranks import data_communicator, mesh_of, ranks_of_group
from zerorun.model.model_layout import DTYPES
from zerorun.model.partition import edits_are_refused, partition_of
from zerorun.model.private_partition import PrivatePartition
from zerorun.model.tensors import is_distributed, is_packed, local_of, stays_whole
from zerorun.process_state import STATE
from zerorun.program_warning import logger
from zerorun.zero.gathered import GatheredParameters


class Init:
    """Shards the parameters of modules that are made within a with-block (stage 3).

    The interface is DeepSpeed's. Each module is made in full and sharded when its ``__init__``
    ends, so no rank ever holds more than one full module and its shards of the others. Values are
    those of rank 0. Collective: all ranks make the same modules in the same order. Within the block
    ``Module.apply(fn)`` passes each module to `fn` with its own parameters full, and keeps rank 0's
    changes; so do ``torch.nn.init`` and in-place operations on a sharded parameter, and whatever an
    ``__init__`` does to its ``.data`` and elements. Those, the ``shape`` and what functions of
    PyTorch read are the whole's there, for eight parameters at a time (DeepSpeed: all is empty), so
    all ranks have to read the same.
    ``copy.deepcopy`` of a sharded parameter is sharded too.

    - `module`: shard this existing module, without a block.
    - `dtype`: of floating-point parameters; default: bf16 or fp16 if the configuration (`config`,
      `config_dict_or_path`) enables one.
    - `enabled`: False does nothing.
    - `sequence_data_parallel_group`, `data_parallel_group` (torch process groups), `mpu`: if ranks
      hold different parts of a model, the ranks over which a parameter is sharded, as passed to
      initialize; values are those of the first of these ranks. Default: all ranks.
    - `zero_param_parallel_group`: ranks that share a secondary partition (hpZ). It is only checked
      to be a part of these ranks; the configuration sets hpZ.
    - `remote_device`: "cpu" or "nvme" keeps shards in host memory until initialize; so does a
      configuration with offload_param. Otherwise they are on this rank's GPU, if it has one.
    - `pin_memory` and arguments for DeepSpeed's own partitioning are accepted and ignored.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        module: nn.Module | None = None,
        data_parallel_group: Any = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        mpu: Any = None,
        zero_param_parallel_group: Any = None,
        zero_quantized_weights: bool = False,
        zero_quantized_nontrainable_weights: bool = False,
        sequence_data_parallel_group: Any = None,
        param_swapper: Any = None,
        tensor_overrides: Any = None,
    ) -> None:
        self._enabled = enabled
        if not enabled:
            return
        if zero_quantized_weights or zero_quantized_nontrainable_weights:
            logger.warning(
                "zero.Init: zero_quantized_weights and zero_quantized_nontrainable_weights count "
                "where they are keys of the configuration that initialize is given"
            )
        config = config_dict_or_path if config is None else config
        given = None if config is None else configuration.of_any_form(config)
        own = "fp32" if given is None else given.config.precision.param_dtype
        self._dtype = dtype or (None if own == "fp32" else DTYPES[own])
        self._refuses_edits = given is not None and edits_are_refused(given)
        self._depth: Counter[int] = Counter()
        self._wrapped: list[tuple[type, Callable[..., None]]] = []
        self._device = local_device()
        make_current(self._device)
        # In host memory, as the GPUs together may not hold them.
        if remote_device is None and given is not None:
            offloaded = "/zero_optimization/offload_param/device"
            remote_device = configuration.value_of(given, offloaded)
        on_host = remote_device in {"cpu", "nvme"}
        self._home = torch.device("cpu") if on_host else self._device
        self._ranks = _ranks_of(sequence_data_parallel_group, data_parallel_group, mpu)
        _check_inside(zero_param_parallel_group, self._ranks)
        self._communicator = communicator.world()
        if data_parallel_group is None and sequence_data_parallel_group is None and mpu is None:
            communicator.check_not_alone("zero.Init", "data_parallel_group")
        if self._ranks is not None:
            self._communicator = data_communicator(self._ranks)
        for each in module.modules() if module is not None else ():
            self._partition(each)

    def __enter__(self) -> "Init":
        if self._enabled:
            STATE.inits.append(self)
            if len(STATE.inits) == 1:
                for name, method in _WITHIN.items():
                    torch_seam.replace(nn.Module, name, method)
                STATE.writes = _Writes()
                STATE.writes.__enter__()
                for cls in _all_subclasses(nn.Module):
                    self._wrap(cls)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._enabled:
            return
        STATE.inits.remove(self)
        if not STATE.inits:
            for name, method in _ORIGINAL.items():
                torch_seam.replace(nn.Module, name, method)
            STATE.writes.__exit__(None, None, None)
        for cls, original in reversed(self._wrapped):
            cls.__init__ = original  # type: ignore[misc]
        self._wrapped.clear()

    def _wrap(self, cls: type) -> None:
        """Partitions instances of `cls` when the outermost ``__init__`` of theirs is done."""
        if "__init__" not in cls.__dict__:
            return
        original = cls.__init__  # type: ignore[misc]

        @functools.wraps(original)
        def initialize(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            key = id(module)
            self._depth[key] += 1
            try:
                with STATE.writes.during_init():
                    original(module, *args, **kwargs)
            finally:
                self._depth[key] -= 1
            if self._depth[key] == 0:
                del self._depth[key]
                STATE.inits[-1]._partition(module)

        cls.__init__ = initialize  # type: ignore[misc]
        self._wrapped.append((cls, original))

    def _partition(self, module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            # bitsandbytes quantizes it when it is moved, which takes all of it.
            raw = getattr(parameter, "bnb_quantized", None) is False or stays_whole(parameter)
            if parameter.is_meta or partition_of(parameter) is not None or raw:
                continue
            cast = parameter.dtype in DTYPES.values() and not is_packed(parameter)
            dtype = self._dtype if cast else None
            parameter.data = parameter.data.to(self._device, dtype)
            if is_distributed(parameter):
                raise _C.ConfigError(
                    f"zero.Init: {type(module).__name__} has a DTensor: parallelize a module after "
                    "the block, without zero.Init around it"
                )
            label = "initial values under zero.Init"
            made = PrivatePartition(parameter, self._communicator, self._ranks, self._home, label)
            made.refuses_edits = self._refuses_edits


def _ranks_of(sequence_group: Any, data_group: Any, mpu: Any) -> tuple[int, ...] | None:
    """The job's ranks that keep parameters together; None for all."""
    groups = {"sequence_data_parallel_group": sequence_group, "data_parallel_group": data_group}
    found = {
        name: ranks_of_group(g, f"zero.Init: {name}") for name, g in groups.items() if g is not None
    }
    if mpu is not None:
        mesh = mesh_of(mpu)
        assert mesh is not None
        found["mpu"] = mesh.data_ranks
    chosen = next(iter(found.values()), None)
    if mpu is not None and chosen != found["mpu"]:
        raise _C.ConfigError(
            f"zero.Init: the group given has ranks {list(chosen or ())}, and the mpu's "
            f"data-parallel ranks are {list(found['mpu'])}: give one of them"
        )
    everybody = chosen is None or len(chosen) == communicator.world().world_size
    return None if everybody else chosen


def _check_inside(group: Any, ranks: tuple[int, ...] | None) -> None:
    """Raises ConfigError for hpZ on ranks that have other parameters."""
    inner = (
        ranks_of_group(group, "zero.Init: zero_param_parallel_group") if group is not None else ()
    )
    outside = sorted(set(inner) - set(ranks if ranks is not None else inner))
    if outside:
        raise _C.ConfigError(
            f"zero.Init: zero_param_parallel_group has ranks {outside}, which are not in the "
            f"data-parallel group {list(ranks or ())} and hold another part of the model"
        )


def _all_subclasses(cls: type) -> list[type]:
    found: dict[type, None] = {}
    pending = [cls]
    while pending:
        subclass: type
        for subclass in pending.pop().__subclasses__():
            if subclass not in found:
                found[subclass] = None
                pending.append(subclass)
    return list(found)


class _OnFullValues:
    """A function of a module, which finds the module's own parameters full."""

    def __init__(self, function: Callable[[nn.Module], None]) -> None:
        self._function = function

    def __call__(self, module: nn.Module) -> None:
        with GatheredParameters(module.parameters(recurse=False), modifier_rank=0):
            self._function(module)


def _apply(module: nn.Module, fn: Callable[[nn.Module], None]) -> nn.Module:
    """Module.apply within a block."""
    given = fn if isinstance(fn, _OnFullValues) else _OnFullValues(fn)
    return _ORIGINAL["apply"](module, given)


def _to_empty(module: nn.Module, **kwargs: Any) -> nn.Module:
    """Module.to_empty within a block: torch.nn.utils.skip_init makes modules without memory, which
    get their parameters here."""
    made: nn.Module = _ORIGINAL["to_empty"](module, **kwargs)
    for each in made.modules():
        STATE.inits[-1]._partition(each)
    return made


def _on_full_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """An initializer of torch.nn.init within a block; most read the tensor's shape first."""

    @functools.wraps(function)
    def initialize(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with GatheredParameters(tensor if _is_away(tensor) else None, modifier_rank=0):
            return function(tensor, *args, **kwargs)

    return initialize


_NEW: Any = nn.Parameter.__new__


def _new_parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
    """nn.Parameter within a block: of a sharded one it has the values, in memory of its own."""
    if isinstance(data, nn.Parameter) and partition_of(data) is not None:
        with GatheredParameters(data):
            data = data.detach().clone()
    return _NEW(cls, data, requires_grad)


def _is_away(value: Any) -> bool:
    """True for a parameter that is sharded and not full now, nor about to be."""
    partition = partition_of(value) if isinstance(value, nn.Parameter) else None
    return partition is not None and not partition.available and local_of(value).numel() == 0


class _Writes(TorchFunctionMode):
    """Within a block, changes of a parameter that is sharded already reach it, as a module's
    ``__init__`` makes them of a layer's that it has just made."""

    def __init__(self) -> None:
        super().__init__()
        # For each __init__ that runs, the parameters that are full until it ends.
        self._held: list[dict[nn.Parameter, GatheredParameters]] = []
        self._found = {name: getattr(nn.init, name) for name in torch_seam.INITIALIZERS.split()}

    def __enter__(self) -> Any:
        full = {name: _on_full_values(function) for name, function in self._found.items()}
        torch_seam.replace_imported(nn.init, full)
        torch_seam.replace(nn.Parameter, "__new__", _new_parameter)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch_seam.replace_imported(nn.init, self._found)
        torch_seam.replace(nn.Parameter, "__new__", _NEW)

    @contextmanager
    def during_init(self) -> Iterator[None]:
        held: dict[nn.Parameter, GatheredParameters] = {}
        self._held.append(held)
        error: tuple[Any, ...] = (None, None, None)
        try:
            yield
        except BaseException as raised:
            error = (type(raised), raised, raised.__traceback__)
            raise
        finally:
            self._held.pop()
            while held:
                held.pop(next(iter(held))).__exit__(*error)

    def _hold(self, parameters: list[nn.Parameter], most: int) -> None:
        """Keeps what a function reads full, and `most` with what earlier ones have read."""
        held = self._held[-1]
        for parameter in parameters:
            if parameter not in held:
                gathered = GatheredParameters(parameter, modifier_rank=0)
                gathered.__enter__()
                held[parameter] = gathered
        while len(held) > most:
            held.pop(next(iter(held))).__exit__(None, None, None)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = [*args, *kwargs.values()]
        given += [value for each in given if isinstance(each, list | tuple) for value in each]
        held = self._held[-1] if self._held else {}
        for value in given:  # those that are used again stay longer than others
            if isinstance(value, nn.Parameter) and value in held:
                held[value] = held.pop(value)
        away = list(dict.fromkeys(value for value in given if _is_away(value)))
        if not away:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        partitions = [found for each in away if (found := partition_of(each)) is not None]
        is_new = not all(partition.in_engine for partition in partitions)
        if self._held and is_new and (func in _SHAPES or name in _SIZES):
            # Loops over all parameters of a model choose by their dimensions what to initialize.
            return func(torch.empty(partitions[0].shape, device="meta"), *args[1:], **kwargs)
        reads_none = name in _OF_NO_VALUES.split()
        in_place = name.endswith("_") and not name.endswith("__") and not reads_none
        if in_place or name in _OPERATORS or (is_new and func == _SET_DATA):
            with GatheredParameters(away, modifier_rank=0):
                return func(*args, **kwargs)
        is_view = func in _VIEWS or name == "__getitem__"
        if self._held and (is_view or (is_new and not reads_none)):
            self._hold(away, max(_MOST_HELD, len(given)))  # what is returned may view them
        return func(*args, **kwargs)


# So many whole parameters a constructor has at once, which may look at all of a model's.
_MOST_HELD = 8
_SET_DATA: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_VIEWS = {getattr(torch.Tensor, name).__get__ for name in ("data", "T", "mT", "H", "mH")}
_SHAPES: Any = {torch.Tensor.shape.__get__, torch.Tensor.ndim.__get__}  # type: ignore[attr-defined]
_SIZES = {"size", "dim", "ndimension", "numel", "nelement", "__len__"}
_OPERATORS = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"}
# Methods that read no values.
_OF_NO_VALUES = """
    __get__ __set__ __delete__ __hash__ __repr__ __format__ __deepcopy__ __reduce_ex__ __dlpack__
    requires_grad_ detach_ share_memory_ register_hook register_post_accumulate_grad_hook
    retain_grad backward stride storage_offset is_contiguous is_floating_point is_complex
    is_signed is_shared is_pinned element_size get_device data_ptr storage untyped_storage
"""


def _init_subclass(cls: type, /, **kwargs: Any) -> None:
    """Classes that are defined within a block are wrapped too."""
    _ORIGINAL["__init_subclass__"](**kwargs)
    if STATE.inits:
        STATE.inits[0]._wrap(cls)


# Methods of nn.Module within a block.
_WITHIN = {"apply": _apply, "to_empty": _to_empty, "__init_subclass__": classmethod(_init_subclass)}
_ORIGINAL: dict[str, Any] = {name: getattr(nn.Module, name) for name in _WITHIN}
