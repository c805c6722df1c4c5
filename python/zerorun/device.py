"""The device that this rank trains on: a GPU if PyTorch and zerorun both have one, else the CPU."""

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from zerorun import _C, environment
from zerorun.host_memory import trim
from zerorun.model.partition import partition_of
from zerorun.program_warning import logger

_CPU = torch.device("cpu")
_ON_CPU = "zerorun --accelerator cpu, or CUDA_VISIBLE_DEVICES= without it, trains on the CPU"


@functools.cache
def _why_no_gpu() -> str:
    """The reason to train on the CPU; empty where there is a GPU. The launcher hides all GPUs from
    CPU ranks.

    Raises DeviceError where a GPU is there that cannot be used: the CPU is no substitute.
    """
    if torch.cuda.is_available():
        why = _C.why_no_cuda()
        if why:
            raise _C.DeviceError(f"PyTorch sees a GPU that zerorun cannot use: {why}; {_ON_CPU}")
        return ""
    if visible := environment.visible_gpus():
        sees_none = f"CUDA_VISIBLE_DEVICES={visible}, but PyTorch {torch.__version__} sees no GPU"
        if torch.version.cuda is not None:
            why = _C.why_no_cuda() or "torch.cuda.init() says why"
            raise _C.DeviceError(f"{sees_none}: {why}; {_ON_CPU}")
        logger.warning("training on the CPU: %s, as it is built without CUDA", sees_none)
    return "PyTorch sees no GPU"


def local_device() -> torch.device:
    """The device of this rank: the GPU of LOCAL_RANK, without that variable PyTorch's current one.

    Raises ConfigError when there are more ranks than GPUs.
    """
    if _why_no_gpu():
        return _CPU
    index, count = environment.local_rank(), torch.cuda.device_count()
    if index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if index >= count == 1 and environment.has_own_gpu():  # srun --gpus-per-task=1, Ray's workers
        return torch.device("cuda", 0)
    if index >= count and not environment.may_share_gpus():
        raise _C.ConfigError(
            f"LOCAL_RANK={index}, but PyTorch sees {count} GPU(s): start at most one rank per GPU, "
            "or set ZERORUN_SHARE_GPUS=1 to let ranks share them"
        )
    return torch.device("cuda", index % count)


def gpu_of(device: torch.device) -> _C.Gpu | None:
    """A GPU as an engine takes it, which becomes PyTorch's current one; None for the CPU."""
    if device == _CPU:
        return None
    make_current(device)
    return _C.Gpu(
        device.index,
        getattr(torch.Tensor, "__dlpack_c_exchange_api__", None),
        lambda: torch.cuda.current_stream(device).cuda_stream,
        torch.cuda.empty_cache,
    )


def make_current(device: torch.device) -> None:
    """Makes `device` the one that PyTorch's collectives and allocations use by default."""
    if device != _CPU:
        torch.cuda.set_device(device)


def shared_device(parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.device | None:
    """The device that all parameters are on; None without any.

    Raises ConfigError naming one that is on another device than the rest, or where this rank
    cannot train. Those of zero.Init are where this rank trains, and those on the meta device
    nowhere.
    """
    found: dict[torch.device, str] = {}
    for name, parameter in parameters:
        if not parameter.is_meta and partition_of(parameter) is None:
            found.setdefault(parameter.device, name)
    if not found:
        return None
    device, name = next(iter(found.items()))
    expected = local_device()
    for other, other_name in found.items():
        if other != device:
            raise _C.ConfigError(
                f"parameter {other_name} is on device '{other}', and {name} on '{device}': move "
                f"the whole model with model.to('{expected}')"
            )
    if device not in {_CPU, expected}:
        why = f" ({_why_no_gpu()})" if expected == _CPU else ""
        raise _C.ConfigError(
            f"parameter {name} is on device '{device}', but this rank trains on '{expected}'{why}: "
            f"move the model with model.to('{expected}')"
        )
    return device


class _ParametersStay(TorchFunctionMode):
    """``model.to(device)`` moves all but the plain parameters that are in host memory, and what
    modules do beside moving is done. Classes derived from nn.Parameter may do more (quantize)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        own = [p for p in model.parameters() if type(p) is nn.Parameter and p.device == _CPU]
        self._staying = {id(tensor): tensor for p in own for tensor in (p, p.grad)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to and id(args[0]) in self._staying:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def on_local_device(model: nn.Module) -> Iterator[torch.device]:
    """Prepares a model that is on the CPU for an engine on this rank's device, which it returns.

    Buffers are moved. Parameters stay until the engine takes them one by one, so that a GPU never
    holds the model beside the engine. If the block fails, what has moved returns to the CPU.

    Raises ConfigError as shared_device().
    """
    before = shared_device(model.named_parameters())
    device = local_device()
    tensors = [*model.parameters(), *model.buffers()]
    if device == _CPU or all(tensor.device != _CPU for tensor in tensors):
        yield device
        return
    try:
        with _ParametersStay(model):
            model.to(device)
        yield device
    except BaseException:
        if before == _CPU:
            model.to(_CPU)
        raise


def release_cached_memory(device: torch.device) -> None:
    """Frees the memory that allocators still keep from the model as it was, for the engine."""
    trim()
    if device != _CPU:
        torch.cuda.empty_cache()
