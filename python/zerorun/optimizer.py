"""Optimizers with torch's interface whose step is the core's, on this rank's shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from zerorun import _C
from zerorun.shards import Shards
from zerorun.state_access import StateAccess
from zerorun.torch_states import TorchStates

__all__ = ["ShardOptimizer", "UpdateRule", "ZeroOptimizer", "rule_of"]


# Optimizers whose step does not treat every element alike.
_WHOLE = {"Adafactor", "LBFGS", "Muon", "SOAP", "Shampoo", "SparseAdam"}


class UpdateRule:
    """How an engine updates its shards: a fused rule of the core, or torch's on the shards."""

    def __init__(self, name: str | None, hyperparameters: dict[str, Any] | None = None) -> None:
        self.name = name  # a value of OptimizerConfig.type; None: the configuration's
        self.hyperparameters = hyperparameters or {}


def rule_of(optimizer: torch.optim.Optimizer) -> UpdateRule:
    """The core's AdamW or Adam for torch's where they compute the same, else the optimizer itself.

    The same: exactly torch's class (or one that says so with `zerorun_rule`), with numbers as
    hyperparameters, and neither amsgrad nor maximize.
    """
    groups = optimizer.param_groups
    kind = type(optimizer)
    whole = next((base.__name__ for base in kind.__mro__ if base.__name__ in _WHOLE), None)
    if whole is not None:
        raise _C.ConfigError(
            f"{kind.__name__} needs whole parameters or a closure, which shards cannot give: use "
            "an optimizer that treats elements alike, or Muon from the configuration"
        )
    named = getattr(kind, "zerorun_rule", None)
    if named is not None:
        return UpdateRule(named)
    decoupled = {group.get("decoupled_weight_decay", kind is torch.optim.AdamW) for group in groups}
    unusual = any(group.get("amsgrad") or group.get("maximize") for group in groups)
    tensors = any(isinstance(beta, torch.Tensor) for g in groups for beta in g.get("betas", ()))
    known = kind in (torch.optim.Adam, torch.optim.AdamW) or hasattr(kind, "adam_w_mode")
    if not known or unusual or tensors or len(decoupled) != 1:
        return UpdateRule(_C.EXTERNAL_OPTIMIZER)
    is_adamw = decoupled.pop()
    return UpdateRule("AdamW" if is_adamw else "Adam", {"adam_w_mode": is_adamw})


class ShardOptimizer(torch.optim.Optimizer):
    """Updates a model's shards with the hyperparameters of a torch optimizer.

    ``param_groups`` are the very dictionaries of the optimizer that was given (`optimizer`), so
    schedulers made for either of the two change the learning rate of both. ``lr`` and
    ``weight_decay``, ``betas`` or ``momentum``, and ``eps`` are read from them at every step.
    """

    def __init__(self, shards: Shards, basic: torch.optim.Optimizer) -> None:
        super().__init__(basic.param_groups, basic.defaults)
        self.param_groups = basic.param_groups
        self.state = basic.state
        self.optimizer = basic
        self.overflow = False
        self.shards = shards
        if shards.external:
            shards.torch_states = TorchStates(shards.core, shards.layout, basic)

    def update(self) -> _C.StepResult:
        """Updates the parameters from the reduced gradients. Collective."""
        core, states = self.shards.core, self.shards.torch_states
        for target, group in zip(core.groups(), self.param_groups, strict=True):
            target.lr = float(group["lr"]) if "lr" in group else 0.0
            target.weight_decay = float(group.get("weight_decay", 0.0))
            if "betas" in group:
                target.beta1, target.beta2 = map(float, group["betas"])
            elif "momentum" in group:
                target.beta1 = float(group["momentum"])
            if "eps" in group and isinstance(group["eps"], float):
                target.eps = group["eps"]
        frozen = self.shards.layout.frozen_since()
        if states is not None:
            indices = [self.shards.layout.ids[parameter] for parameter in frozen]
            result = core.step_with(lambda _: states.step(indices))
        elif frozen:
            result = StateAccess(self.shards).keep(frozen, core.step)
        else:
            result = core.step()
        self.overflow = not result.applied
        # torch's schedulers look here for whether the optimizer has stepped.
        vars(self.optimizer)["_opt_called"] = True
        return result

    @property
    def loss_scale(self) -> float:
        """The factor of the loss before backward; 1 unless parameters are fp16."""
        return self.shards.core.loss_scale

    cur_scale = loss_scale

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "shards"):
            raise _C.ConfigError(
                "add_param_group after initialize: the parameters are sharded already; make all "
                "groups before initialize"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Hyperparameters of the groups; states are in the engine's checkpoints."""
        return {
            "param_groups": [
                {key: value for key, value in group.items() if key != "params"}
                for group in self.param_groups
            ]
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise _C.CheckpointError(
                f"optimizer state has {len(saved)} groups, this optimizer {len(self.param_groups)}"
            )
        for group, values in zip(self.param_groups, saved, strict=True):
            group.update({key: value for key, value in values.items() if key != "params"})


class TrainingLoop(Protocol):
    """The engine of a ZeroOptimizer."""

    module: nn.Module

    def step(self) -> None: ...
    def zero_grad(self) -> None: ...


class ZeroOptimizer(ShardOptimizer):
    """The optimizer that :func:`zerorun.initialize` returns; it steps a :class:`ZeroEngine`."""

    def __init__(self, engine: TrainingLoop, shards: Shards, basic: torch.optim.Optimizer) -> None:
        super().__init__(shards, basic)
        self.engine = engine

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """The engine's step, which acts at the end of a batch of micro-steps."""
        if closure is not None:
            raise _C.ConfigError("step(closure) evaluates the model again, which ZeRO cannot do")
        self.engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As :meth:`ZeroEngine.zero_grad`."""
        self.engine.zero_grad()
