"""Names that scripts import, and the global that Hugging Face replaces around zero.Init."""

# ruff: noqa: F401 - scripts import these names from here

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import zerorun
from torch import nn
from zerorun import torch_seam
from zerorun.model.partition import Partition, partition_of
from zerorun.model.private_partition import PrivatePartition
from zerorun.zero import (
    GatheredParameters,
    ZeroParamStatus,
    register_external_parameter,
    unregister_external_parameter,
)
from zerorun.zero.gathered import status_of

from deepspeed import comm
from deepspeed._placeholders import AbsentAttributeError
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config import adapt_config, read_config
from deepspeed.utils import groups

_orig_torch_arange = torch.arange
partitioned_param_data_shape = [0]  # of a parameter that is not gathered


class Init(zerorun.zero.Init):
    """zerorun's, which makes torch's process group first, as scripts expect of DeepSpeed's.

    Layers draw their initial values in the 16-bit dtype, as they do there: random numbers of 16
    bits are others than rounded ones of 32. So what torch.empty makes within the block has that
    dtype, unless its caller names one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(zerorun.zero.Init).bind(*args, **kwargs).arguments
        if given.get("enabled", True):
            comm.init_distributed()
            for name in ("config_dict_or_path", "config"):
                if given.get(name) is not None:
                    given[name] = adapt_config(read_config(given[name]))
        super().__init__(**given)

    def __enter__(self) -> "Init":
        super().__enter__()
        self._torch_empty = torch.empty
        if self._enabled and self._dtype is not None:
            torch_seam.replace(torch, "empty", _empty_of(self._torch_empty, self._dtype))
        return self

    def __exit__(self, *error: Any) -> None:
        torch_seam.replace(torch, "empty", self._torch_empty)
        super().__exit__(*error)


MiCS_Init = Init  # what versions before 0.19 call it in programs that set mics_shard_size


def _empty_of(fn: Callable[..., torch.Tensor], dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """torch.empty with another default dtype."""

    @functools.wraps(fn)
    def empty(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("dtype") is None and "out" not in kwargs:
            kwargs["dtype"] = dtype
        return fn(*args, **kwargs)

    return empty


def zero_wrapper_for_fp_tensor_constructor(
    fn: Callable[..., torch.Tensor], target_fp_dtype: torch.dtype, target_device: Any = None
) -> Callable[..., torch.Tensor]:
    """A constructor whose floating results have the target dtype and device.

    zerorun's Init changes none of those that buffers are made with: it converts a module's
    parameters when the module is complete, so rotary frequencies keep their precision whether this
    is replaced or not.
    """

    def construct(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device") is None and target_device is not None:
            kwargs["device"] = target_device
        tensor = fn(*args, **kwargs)
        return tensor.to(target_fp_dtype) if tensor.is_floating_point() else tensor

    return construct


# --- attributes of parameters ---
#
# What DeepSpeed's have besides what every partitioned parameter of zerorun has. They are properties
# of the class, so that a gather writes nothing to each parameter. Ordinary ones have none of them.


def _secondary_tensor(_partition: Partition) -> None:
    """None without zero_hpz_partition_size, as there."""
    if groups.has_secondary_partitions:
        raise AbsentAttributeError(
            "zerorun keeps hpZ's partition (zero_hpz_partition_size) in one memory for many "
            "parameters, so a parameter has no ds_secondary_tensor. ds_tensor is this rank's part "
            "of the first partition, and deepspeed.zero.GatheredParameters makes the parameter full"
        )


def _summary(partition: Partition) -> Callable[..., dict[str, Any]]:
    """A method, whose result describes the parameter."""
    parameter = partition.parameter

    def ds_summary(use_debug_name: bool = False) -> dict[str, Any]:
        del use_debug_name
        return {
            "id": parameter.ds_id,
            "status": status_of(partition).name,
            "numel": parameter.numel(),
            "ds_numel": parameter.ds_numel,
            "shape": tuple(parameter.shape),
            "ds_shape": tuple(parameter.ds_shape),
            "requires_grad": parameter.requires_grad,
            "grad_shape": None if parameter.grad is None else tuple(parameter.grad.shape),
            "persist": parameter.ds_persist,
            "active_sub_modules": parameter.ds_active_sub_modules,
            "ds_tensor.shape": parameter.ds_tensor.shape,
        }

    return ds_summary


class _Gathered:
    """What ``all_gather_coalesced`` returns: there is nothing left to wait for."""

    def wait(self, **_options: Any) -> None:
        """The parameters are full."""


def _gather_coalesced(partition: Partition) -> Callable[..., _Gathered]:
    """A method: ``all_gather`` with a handle. Collective."""

    def all_gather_coalesced(params: Iterable[nn.Parameter], **_options: Any) -> _Gathered:
        partition.parameter.all_gather(list(params))
        return _Gathered()

    return all_gather_coalesced


def _convert(partition: Partition) -> Callable[[Iterable[nn.Parameter]], None]:
    """A method, which shards parameters that were made later. Collective."""

    def convert_to_zero_parameters(param_list: Iterable[nn.Parameter]) -> None:
        if not isinstance(partition, PrivatePartition):
            raise RuntimeError(
                "convert_to_zero_parameters: an engine has the model's parameters and takes no "
                "further ones: call it before deepspeed.initialize"
            )
        for parameter in param_list:
            if partition_of(parameter) is None:
                partition.shard_alike(parameter)

    return convert_to_zero_parameters


def _absent(name: str, instead: str) -> Callable[[Partition], Any]:
    def get(_partition: Partition) -> Any:
        raise AbsentAttributeError(f"zerorun's parameters have no {name}: {instead}")

    return get


_ATTRIBUTES: dict[str, Callable[[Partition], Any]] = {
    "ds_status": status_of,
    "ds_secondary_tensor": _secondary_tensor,
    "ds_summary": _summary,
    "all_gather_coalesced": _gather_coalesced,
    "convert_to_zero_parameters": _convert,
    "partition_gradients": _absent(
        "partition_gradients", "backward reduces gradients; safe_get_local_grad is this rank's part"
    ),
    "nvme_swapper": _absent(
        "nvme_swapper", "the engine reads and writes parameters on NVMe in gathers"
    ),
}


def _value(name: str, get: Callable[[Partition], Any], parameter: torch.nn.Parameter) -> Any:
    partition = partition_of(parameter)
    if partition is None:
        raise AttributeError(f"an ordinary parameter has no attribute '{name}'")
    return get(partition)


for _name, _get in _ATTRIBUTES.items():
    setattr(nn.Parameter, _name, property(functools.partial(_value, _name, _get)))


@contextlib.contextmanager
def OnDevice(  # noqa: N802 - DeepSpeed's name
    dtype: torch.dtype, device: str = "meta", enabled: bool = True
) -> Iterator[None]:
    """Tensors made within are of `dtype` on `device`."""
    if not enabled:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)
