"""Steps of torch optimizers that no engine was given, with parameters that are an engine's."""

import functools
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from zerorun import _C
from zerorun.optimizers.parameter_states import ParameterStates
from zerorun.program_warning import warn
from zerorun.shards.shards import Shards, shards_of


@functools.cache
def watch() -> None:
    """From the first call on, such a step is an error; in DeepSpeed scripts a warning, if the
    engine has another optimizer.

    It would train nothing, since the engine has the gradients, or each rank apart: an engine
    without an optimizer leaves the rank's own gradients, which hooks of parameters find, too.
    """
    register_optimizer_step_pre_hook(_look_at)


def _look_at(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    if isinstance(optimizer.state, ParameterStates):
        return  # an engine's, or the one that was given for it
    in_backward = torch._C._current_graph_task_id() >= 0
    engines: dict[Shards, None] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            shards = shards_of(parameter)
            if shards is None or not _misses_gradient(shards, parameter, in_backward):
                return  # it trains something
            engines[shards] = None
    name = type(optimizer).__name__
    if engines and all(s.policy.clips_as_torch or not s.layout.group_of for s in engines):
        raise _C.ConfigError(
            f"{name}.step: its parameters are an engine's, which reduces the gradients for the "
            "optimizer that it was given: give it this one (zerorun.shard(model, "
            "optimizer=optimizer), or initialize)"
        )
    if engines:
        warn(
            f"{name}.step changes nothing: the gradients of an engine's parameters are the "
            "engine's, which steps the optimizer that initialize was given"
        )


def _misses_gradient(shards: Shards, parameter: Any, in_backward: bool) -> bool:
    """True where a step of torch's finds no gradient, or only this rank's."""
    if shards.is_left:
        return False  # the program steps now
    if not shards.layout.group_of:
        return True  # nothing was to be trained
    if shards.stage == 0 and not shards.policy.clips_as_torch:
        return False  # DeepSpeed scripts find the average there
    return in_backward or parameter.grad is None
