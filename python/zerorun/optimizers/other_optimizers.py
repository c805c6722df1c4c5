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
    """From the first call on, such a step is an error; in DeepSpeed scripts a warning.

    It would train nothing, since the engine has the gradients, or each rank apart: an engine
    without an optimizer leaves the rank's own gradients, which hooks of parameters find, too.
    """
    register_optimizer_step_pre_hook(_look_at)


def _look_at(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    inside: list[Any] = [optimizer]
    for value in vars(optimizer).values():
        inside += value if isinstance(value, list | tuple) else [value]
    if any(isinstance(v, torch.optim.Optimizer) and _is_an_engines(v) for v in inside):
        return  # an engine's, the one that was given for it, or a wrapper of one or several
    in_backward = torch._C._current_graph_task_id() >= 0
    found: list[tuple[Shards, Any]] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad and parameter.grad is None:
                continue  # PyTorch would leave it, too
            shards = shards_of(parameter)
            if shards is None or not _misses_gradient(shards, parameter, in_backward):
                return  # it trains something
            found.append((shards, parameter))
    name = type(optimizer).__name__
    if any(_is_error(*each) for each in found):
        raise _C.ConfigError(
            f"{name}.step: its parameters are an engine's, which reduces the gradients for the "
            "optimizer that it was given: give it this one (zerorun.shard(model, "
            "optimizer=optimizer), or initialize)"
        )
    if any(parameter in shards.layout.group_of for shards, parameter in found):
        warn(
            f"{name}.step changes nothing: the gradients of an engine's parameters are the "
            "engine's, which steps the optimizer that initialize was given"
        )
    elif found:
        has = "no" if not found[0][0].layout.group_of else "other parameters in its"
        warn(
            f"{name}.step: the engine of its parameters has {has} optimizer, so gradients are each "
            "rank's own: average them, or give the engine this optimizer's parameters"
        )


def _is_an_engines(optimizer: torch.optim.Optimizer) -> bool:
    # The engine replaces methods of the optimizer that it was given, whose states may be reset.
    return isinstance(optimizer.state, ParameterStates) or "add_param_group" in vars(optimizer)


def _misses_gradient(shards: Shards, parameter: Any, in_backward: bool) -> bool:
    """True where a step of torch's finds no gradient, or only one of several ranks'."""
    if shards.is_left:
        return False  # the program steps now
    if parameter not in shards.layout.group_of:
        return shards.ranks.data.world_size > 1  # the engine was not to train it
    if shards.stage == 0 and not shards.policy.clips_as_torch:
        return False  # DeepSpeed scripts find the average there
    return in_backward or parameter.grad is None


def _is_error(shards: Shards, parameter: Any) -> bool:
    """True where the program cannot average the gradients itself, or has no reason to."""
    if shards.layout.group_of and parameter not in shards.layout.group_of:
        return parameter.numel() == 0  # sharded; the program's own Muon may average others
    return shards.policy.clips_as_torch or (shards.stage == 3 and not shards.layout.group_of)
