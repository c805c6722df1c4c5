"""zerorun.shard: from a PyTorch model and keywords to an engine, without a configuration."""

import contextlib
import numbers
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import nn

from zerorun import _C, communicator
from zerorun import config as configuration
from zerorun.device import local_device, make_current
from zerorun.engine import ZeroEngine
from zerorun.initialization import initialize
from zerorun.model.adoption import is_fully_sharded
from zerorun.model.model_layout import DTYPES
from zerorun.model.private_partition import Initializer, materialize
from zerorun.model.units import UnitPolicy

# Where the configuration that zerorun.shard makes has the values of its keywords.
_POINTERS = {
    "/zero_optimization/stage": "stage",
    "/zerorun/shard_group_size": "shard_group_size",
    "/gradient_clipping": "clip",
    "/gradient_accumulation_steps": "accumulation_steps",
    "/zerorun/comm_timeout": "timeout",
    "/communication_data_type": "reduce_dtype",
    "/bf16/enabled": "dtype",
    "/fp16/enabled": "dtype",
    "/zero_optimization/offload_optimizer": "offload_optimizer",
    "/zero_optimization/offload_param": "offload_params",
    "/zerorun/metrics": "metrics",
}
_FOLDER = "expected a folder on a local disk"


def number_of(keyword: str, value: Any) -> Any:
    """The value as JSON has it, which the configuration checks; "auto" is one, too."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):  # NumPy's are
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise _C.ConfigError(f"shard: {keyword}: got {_text(value)}, expected a number")


def place_of(keyword: str, value: Any) -> str:
    """Where to offload to."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    raise _C.ConfigError(
        f'shard: {keyword}: got {_text(value)}, expected "cpu" or the path of a folder on a local '
        "disk"
    )


def check_initial_values(init: Any, weights: Any) -> None:
    """Raises ConfigError unless they are a function and something like a dictionary."""
    if init is not None and not callable(init):
        raise _C.ConfigError(f"shard: init: got {_text(init)}, expected a function of a module")
    if weights is not None and not (hasattr(weights, "keys") and hasattr(weights, "__getitem__")):
        raise _C.ConfigError(
            f"shard: weights: got {_text(weights)}, expected a mapping from names to tensors"
        )


def _text(value: Any) -> str:
    return "None" if value is None else str(type(value))


@contextlib.contextmanager
def naming_keywords() -> Iterator[None]:
    """Errors about the configuration that zerorun.shard makes name the keywords instead."""
    try:
        yield
    except _C.Error as error:
        text = re.sub(r"^zerorun\.shard: 1 problem\s+1\. ", "shard: ", str(error))
        for pointer, keyword in _POINTERS.items():
            place = re.escape(pointer) + r"(/device|/nvme_path)?(?![\w/])"
            text = re.sub(rf"{place}( \(\d+:\d+\))?( \(/[\w/]+\))?", keyword, text)
        text = text.replace(_FOLDER, f'expected "cpu" or {_FOLDER.removeprefix("expected ")}')
        error.args = (text, *error.args[1:])
        raise


_SECTIONS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@naming_keywords()
# size: half of it is the keywords and what they mean
def shard(  # noqa: PLR0913 - keywords
    model: nn.Module,
    *,
    stage: Literal[0, 1, 2, 3] = 3,
    shard_group_size: int | Literal["auto"] = 0,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None,
    dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    clip: float | None = None,
    accumulation_steps: int = 1,
    units: UnitPolicy | None = None,
    init: Initializer | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
    offload_optimizer: str | os.PathLike[str] | None = None,
    offload_params: str | os.PathLike[str] | None = None,
    device_mesh: Any = None,
    timeout: float = 600.0,
    metrics: str | os.PathLike[str] | None = None,
) -> ZeroEngine:
    """Shards `model` over the ranks of the job, in place, and returns the engine that trains it.

    Implements the ZeRO stages (Rajbhandari et al., arXiv 1910.02054) and FSDP2's HSDP. Collective:
    every rank calls it with the same model. All ranks get rank 0's values; parameters stay the same
    objects. A model on the CPU is moved to this rank's GPU if it has one.

    - `stage`: 0 replicates; 1 shards optimizer states, 2 also gradients, 3 also parameters.
    - `shard_group_size`: number of neighbouring ranks that share one copy of what is sharded;
      gathers stay within the group. 0: all ranks; "auto": the ranks of a host.
    - `optimizer`: a torch optimizer on the model's parameters, or a function of parameter groups
      that makes one (``functools.partial(torch.optim.AdamW, lr=1e-3)``). After this call its
      methods and ``state`` are the engine's. None: the engine does not train.
    - `dtype`: dtype of parameters in forward and backward; 16-bit parameters get fp32 masters.
      None: the model's. With 16 bits ``engine(...)`` casts floating-point inputs. With fp16 use
      ``engine.backward(loss)``, which scales the loss.
    - `reduce_dtype`: dtype in which gradients are added over the ranks. None: the parameters'.
    - `clip`: maximum L2 norm of the whole gradient. None: no clipping.
    - `accumulation_steps`: backward passes per update, over which the gradient is averaged. With 1,
      a step applies the sum of all backward passes since the last step, as in torch.
    - `units`: modules that are gathered as a whole at stage 3: a class, a name ("Block",
      "layers.*"), several of them, or a function of (path, module). None: elements of module
      lists, and siblings of one class.
    - `init`, `weights`: only for models on the meta device. `init(module)` writes a module's own
      parameters and buffers; default: ``module.reset_parameters()``. `weights` maps names to
      tensors like a state dict; rank 0's is used. They go into the engine piece by piece, and
      what `init` makes module by module, of which each rank keeps its part.
    - `offload_optimizer`, `offload_params`: "cpu", or the path of a folder on a local disk.
    - `device_mesh`: a torch DeviceMesh with dimension names. "tp": a model that is divided along it
      (``parallelize_module(model, mesh["tp"], plan)``). "dp_replicate" and "dp_shard": as
      `shard_group_size`. docs/meshes.md lists the names.
    - `timeout`: seconds that a collective waits for other ranks.
    - `metrics`: file for the figures of each step, which `zerorun top` and `zerorun report` read.

    Raises :class:`zerorun.ConfigError`, a ValueError, which names the argument or parameter, if
    arguments are invalid or contradict each other.
    """
    if not isinstance(model, nn.Module):
        raise _C.ConfigError(f"shard: model is {type(model)}, expected a torch.nn.Module")
    if metrics is not None and (not isinstance(metrics, str | os.PathLike) or not str(metrics)):
        raise _C.ConfigError(f"shard: metrics: got {metrics!r}, expected the path of a file")
    check_initial_values(init, weights)
    _check_wide(model, dtype)
    zero: dict[str, Any] = {"stage": number_of("stage", stage)}
    zero |= _offload("offload_optimizer", "offload_optimizer", offload_optimizer)
    zero |= _offload("offload_param", "offload_params", offload_params)
    config = _precision(dtype, reduce_dtype) | {
        "train_micro_batch_size_per_gpu": 1,  # of which only data loaders ask
        "gradient_accumulation_steps": number_of("accumulation_steps", accumulation_steps),
        "gradient_clipping": 0.0 if clip is None else number_of("clip", clip),
        "zero_optimization": zero,
        "zerorun": {
            "comm_timeout": number_of("timeout", timeout),
            "shard_group_size": number_of("shard_group_size", shard_group_size),
            "metrics": None if metrics is None else os.fspath(metrics),
        },
    }
    configuration.parse(config, "zerorun.shard")  # before anything is made
    device = local_device()
    make_current(device)
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        if device_mesh is not None:
            raise _C.ConfigError(
                "shard: device_mesh= and a model on the meta device: give the model its values "
                "first (model.to_empty(device='cpu') and its initialisation)"
            )
        if is_fully_sharded(model):
            raise _C.ConfigError(
                "shard: fully_shard was called on a model on the meta device: leave fully_shard "
                "out, or give the model its values first (model.to_empty(device='cpu') and its "
                "initialisation)"
            )
        world = communicator.world(timeout)
        materialize(model, world, device=device, init=init, weights=weights)
    elif init is not None or weights is not None:
        raise _C.ConfigError(
            "shard: init and weights are for a model on the meta device, and nothing of this one "
            "is, or is any more after a call that failed: leave them out, or make the model under "
            "torch.device('meta')"
        )
    engine, made, *_ = initialize(
        model,
        optimizer,
        config=config,
        device_mesh=device_mesh,
        units=units,
        engine_class=_CastingEngine,
    )
    if made is not None:
        made.given.keep(engine)
    return engine


class _CastingEngine(ZeroEngine):
    """Gives forward its floating-point inputs in the parameters' 16-bit dtype."""

    def _input_dtype(self) -> torch.dtype | None:
        dtype = DTYPES[self._shards.settings.precision.param_dtype]
        return None if dtype == torch.float32 else dtype


def _precision(dtype: torch.dtype | None, reduce_dtype: torch.dtype | None) -> dict[str, Any]:
    for name, value in (("dtype", dtype), ("reduce_dtype", reduce_dtype)):
        if value is not None and value not in _NAMES:
            expected = ", ".join(map(str, _NAMES))
            raise _C.ConfigError(f"shard: {name}={value}, expected one of {expected}")
    sections: dict[str, Any] = {}
    if dtype in _SECTIONS:
        sections[_SECTIONS[dtype]] = {"enabled": True}
    if reduce_dtype is not None:
        sections["communication_data_type"] = _NAMES[reduce_dtype]
    return sections


def _check_wide(model: nn.Module, dtype: torch.dtype | None) -> None:
    """A model that has 16-bit parameters is not made fp32 by an engine."""
    if dtype != torch.float32:
        return
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != dtype:
            raise _C.ConfigError(
                f"shard: dtype={dtype}, but parameter {name} is {parameter.dtype}: call "
                "model.float() before"
            )


def _offload(section: str, keyword: str, place: str | os.PathLike[str] | None) -> dict[str, Any]:
    if place is None:
        return {}
    path = place_of(keyword, place)
    if path == "cpu":
        return {section: {"device": "cpu"}}
    return {section: {"device": "nvme", "nvme_path": path}}
