"""deepspeed.checkpointing on torch.utils.checkpoint."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from zerorun.process_state import STATE

from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config import read_config
from deepspeed.utils import bwc_tensor_model_parallel_rank, bwc_tensor_model_parallel_world_size
from deepspeed.utils.logging import logger

_MODEL_PARALLEL = "model-parallel-rng"
_NO_EFFECT = {
    "contiguous_checkpointing": "PyTorch's allocator places what is kept",
    "synchronize": "nothing has to wait",
    "profile": "torch.profiler shows the recomputation",
}


class CudaRNGStatesTracker:
    """Generator states by name; `fork` runs a block with one of them, on GPUs and on the host."""

    def __init__(self) -> None:
        self.states_: dict[str, torch.Tensor] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        self.states_, self.seeds_ = {}, set()

    def get_states(self) -> dict[str, torch.Tensor]:
        return dict(self.states_)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        self.states_ = dict(states)

    def add(self, name: str, seed: int) -> None:
        """A new state, as after manual_seed(seed). ValueError for a name or seed that is there."""
        if seed in self.seeds_:
            raise ValueError(f"the seed {seed} is in use: give each state another one")
        if name in self.states_:
            raise ValueError(f"the state {name} is there already: reset() forgets all states")
        accelerator = get_accelerator()
        before = accelerator.get_rng_state()
        accelerator.manual_seed(seed)
        self.states_[name] = accelerator.get_rng_state()
        self.seeds_.add(seed)
        accelerator.set_rng_state(before)

    @contextlib.contextmanager
    def fork(self, name: str = _MODEL_PARALLEL) -> Iterator[None]:
        """Random numbers inside come from the state `name`, which goes on from there next time."""
        if name not in self.states_:
            known = ", ".join(self.states_) or "none"
            raise ValueError(f"there is no state {name}, only: {known}; add(name, seed) makes one")
        accelerator = get_accelerator()
        before = accelerator.get_rng_state()
        accelerator.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = accelerator.get_rng_state()
            accelerator.set_rng_state(before)


@dataclass
class _State:
    """The settings of configure()."""

    mpu: Any = None
    configured: bool = False
    in_cpu: bool = False


_state = _State()
_tracker = CudaRNGStatesTracker()


def _forget() -> None:
    _state.__init__()
    _tracker.reset()


STATE.others[__name__] = _forget


def configure(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
    mpu_: Any,
    deepspeed_config: Any = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Arguments go before the section activation_checkpointing of `deepspeed_config`.

    Without an `mpu_` the one before stays. Inputs that are kept for the backward pass go to the
    host's memory with `checkpoint_in_cpu`. `partition_activations` divides them among the ranks of
    a model-parallel group, which `mpu_` has to have one of: zerorun's ranks each have inputs of
    their own.
    """
    section = {}
    if deepspeed_config is not None:
        section = read_config(deepspeed_config).get("activation_checkpointing") or {}

    def chosen(argument: Any, key: str) -> Any:
        return section.get(key) if argument is None else argument

    mpu = _state.mpu if mpu_ is None else mpu_
    _check_partition(chosen(partition_activations, "partition_activations"), mpu)
    _state.mpu, _state.configured = mpu, True
    _state.in_cpu = bool(chosen(checkpoint_in_cpu, "cpu_checkpointing"))
    wanted = {
        "contiguous_checkpointing": chosen(
            contiguous_checkpointing, "contiguous_memory_optimization"
        ),
        "synchronize": chosen(synchronize, "synchronize_checkpoint_boundary"),
        "profile": chosen(profile, "profile"),
    }
    for name, value in wanted.items():
        if value:
            logger.warning("activation checkpointing: %s has no effect: %s", name, _NO_EFFECT[name])


def partition_activations_in_checkpoint(partition_activation: bool) -> None:
    """Without model parallelism a rank's part of its inputs is all of them."""
    _check_partition(partition_activation, _state.mpu)


def _check_partition(partition_activation: Any, mpu: Any) -> None:
    ranks = bwc_tensor_model_parallel_world_size(mpu)
    if partition_activation and ranks > 1:
        raise NotImplementedError(
            f"partition_activations over {ranks} model-parallel ranks is not part of zerorun: use "
            "checkpoint_in_cpu, or ZeRO stage 3 instead of model parallelism"
        )


def set_num_layers(nlayers: int) -> None:
    """Memory is given out as checkpoints come, however many."""


def is_configured() -> bool:
    return _state.configured


def reset() -> None:
    """Nothing is kept between iterations."""


@contextlib.contextmanager
def _tracked(states: dict[str, torch.Tensor]) -> Iterator[None]:
    """The tracker's states as they were in the forward pass."""
    now = _tracker.get_states()
    _tracker.set_states(states)
    try:
        yield
    finally:
        _tracker.set_states(now)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls the function and keeps its inputs only: backward calls it again, with the same random
    numbers. Inputs in nested containers and keywords count, as in torch.utils.checkpoint."""
    states = _tracker.get_states()
    if _state.in_cpu and get_accelerator().device_name() != "cpu":
        return _with_inputs_on_the_host(function, states, args, kwargs)
    # To the end, as DeepSpeed: TorchScript does not pass on the exception that stops early.
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        return torch.utils.checkpoint.checkpoint(
            functools.partial(function, **kwargs),
            *args,
            use_reentrant=False,
            context_fn=lambda: (contextlib.nullcontext(), _tracked(states)),
        )


non_reentrant_checkpoint = checkpoint


def _with_inputs_on_the_host(
    function: Callable[..., Any],
    states: dict[str, torch.Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The reentrant kind, which hands its inputs to autograd to keep, where hooks can move them;
    those that it is given by position."""
    calls = 0

    def run(*inputs: Any) -> Any:
        nonlocal calls
        calls += 1
        named = dict(zip(kwargs, inputs[len(args) :], strict=True))
        with _tracked(states) if calls > 1 else contextlib.nullcontext():
            return function(*inputs[: len(args)], **named)

    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        return torch.utils.checkpoint.checkpoint(run, *args, *kwargs.values(), use_reentrant=True)


class CheckpointFunction:
    """As an autograd function: CheckpointFunction.apply(function, outputs, *args) extends the list
    `outputs`."""

    @staticmethod
    def apply(function: Callable[..., Any], all_outputs: list[Any], *args: Any) -> None:
        result = checkpoint(function, *args)
        all_outputs += result if isinstance(result, tuple) else [result]


def get_cuda_rng_tracker() -> CudaRNGStatesTracker:
    return _tracker


def model_parallel_cuda_manual_seed(seed: int) -> None:
    """The default generator begins with `seed`, the one of model-parallel parts with another on
    each rank of their group."""
    _tracker.reset()
    get_accelerator().manual_seed(seed)
    _tracker.add(_MODEL_PARALLEL, _model_parallel_seed(seed))


def model_parallel_reconfigure_tp_seed(seed: int) -> None:
    """The generator of model-parallel parts begins again."""
    with _tracker.fork():
        get_accelerator().manual_seed(_model_parallel_seed(seed))


def _model_parallel_seed(seed: int) -> int:
    rank = bwc_tensor_model_parallel_rank(_state.mpu)
    return seed + 2718 + rank  # DeepSpeed's and Megatron's distance
