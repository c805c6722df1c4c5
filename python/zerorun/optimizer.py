"""The optimizer that initialize() returns: torch's interface over the engine's sharded step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from zerorun import _C
from zerorun.parameter_memory import tensor_of

if TYPE_CHECKING:
    from zerorun.engine import ZeroEngine

__all__ = ["UpdateRule", "ZeroOptimizer", "rule_of"]


# Optimizers whose step is not one of elements.
_WHOLE = {"Adafactor", "LBFGS", "Muon", "SOAP", "Shampoo", "SparseAdam"}


class UpdateRule:
    """How an engine updates its shards: a fused rule of the core, or torch's on the shards."""

    def __init__(self, name: str | None, hyperparameters: dict[str, Any] | None = None) -> None:
        self.name = name  # of OptimizerConfig.type; None: as the configuration says
        self.hyperparameters = hyperparameters or {}

    @property
    def external(self) -> bool:
        return self.name == _C.EXTERNAL_OPTIMIZER


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


def _is_number(value: Any) -> bool:
    """A state that is not one per element: a step count, as a tensor or not."""
    return not isinstance(value, torch.Tensor) or value.dim() == 0


def _shard_of(value: Any, shape: torch.Size, part: slice, what: str, shard: torch.Tensor) -> Any:
    """This rank's part of a state that the optimizer had before it was sharded."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0 != len(shape):
        return value
    if value.shape != shape:
        raise _C.ConfigError(
            f"{what} has shape {tuple(value.shape)}, the parameter {tuple(shape)}: an optimizer "
            "whose states are not its parameters' shape, or are made from partitioned parameters, "
            "cannot run on shards"
        )
    return value.detach().flatten()[part].to(shard.device, copy=True)


class ZeroOptimizer(torch.optim.Optimizer):
    """Steps a :class:`ZeroEngine`.

    ``param_groups`` are the very dictionaries of the optimizer that was given (`optimizer`), so
    schedulers made for either of the two change the learning rate of both. ``lr`` and
    ``weight_decay``, ``betas`` or ``momentum``, and ``eps`` are read from them at every step.
    """

    def __init__(self, engine: ZeroEngine, basic: torch.optim.Optimizer, rule: UpdateRule) -> None:
        super().__init__(basic.param_groups, basic.defaults)
        self.param_groups = basic.param_groups
        self.state = basic.state
        self.optimizer = basic
        self.rule = rule
        self.overflow = False
        self.engine = engine
        self._shards: dict[tuple[int, int], torch.nn.Parameter] = {}  # by (parameter, begin)
        self._members: list[list[torch.nn.Parameter]] = []  # by group, for an external rule
        if rule.external:
            self._shard_groups(engine)

    def _shard_groups(self, engine: ZeroEngine) -> None:
        """The basic optimizer will step this rank's flat fp32 shards."""
        layout = engine.layout
        parameter_of = {index: parameter for parameter, index in layout.ids.items()}
        self._members = [[] for _ in self.param_groups]
        before = dict(self.optimizer.state)
        self.optimizer.state.clear()
        for interval in engine.core.state_intervals():
            if interval.grad is None:
                continue
            parameter = parameter_of[interval.parameter]
            shard = torch.nn.Parameter(tensor_of(interval.master))
            shard.grad = tensor_of(interval.grad)
            self._shards[interval.parameter, interval.begin] = shard
            self._members[layout.group_of[parameter]].append(shard)
            if parameter in before:
                shape = layout.shapes[parameter]
                part = slice(interval.begin, interval.begin + interval.numel)
                self.optimizer.state[shard] = {
                    key: value
                    if key == "step"
                    else _shard_of(value, shape, part, f"{key} of {layout.names[parameter]}", shard)
                    for key, value in before[parameter].items()
                }

    def shard_state(self, parameter: int, begin: int) -> dict[str, Any]:
        """What torch's optimizer keeps of one of this rank's shards."""
        return self.optimizer.state.get(self._shards[parameter, begin], {})

    def load_shard_state(self, parameter: int, begin: int, state: dict[str, Any]) -> None:
        shard = self._shards[parameter, begin]
        self.optimizer.state[shard] = {
            key: value if _is_number(value) else value.to(shard.device)
            for key, value in state.items()
        }

    def detach(self) -> None:
        """States are gone with the engine."""
        if self.rule.external:
            self.optimizer.state.clear()
            self._shards.clear()
            self._members.clear()

    def update(self) -> _C.StepResult:
        """One step of the engine; :meth:`ZeroEngine.step` calls it."""
        core = self.engine.core
        for target, group in zip(core.groups(), self.param_groups, strict=True):
            target.lr = float(group["lr"]) if "lr" in group else 0.0
            target.weight_decay = float(group.get("weight_decay", 0.0))
            if "betas" in group:
                target.beta1, target.beta2 = map(float, group["betas"])
            elif "momentum" in group:
                target.beta1 = float(group["momentum"])
            if "eps" in group and isinstance(group["eps"], float):
                target.eps = group["eps"]
        result = core.step_with(self._step_shards) if self.rule.external else core.step()
        self.overflow = not result.applied
        # torch's schedulers look here for whether the optimizer has stepped.
        self.optimizer._opt_called = True
        return result

    def _step_shards(self, _intervals: list[_C.StateInterval]) -> None:
        # The shards' gradients view the engine's memory, which holds their new values. Outside of
        # this step the groups have the model's parameters, which is what programs expect there.
        given = [group["params"] for group in self.param_groups]
        try:
            for group, shards in zip(self.param_groups, self._members, strict=True):
                group["params"] = shards
            with torch.enable_grad():
                self.optimizer.step()
        finally:
            for group, params in zip(self.param_groups, given, strict=True):
                group["params"] = params

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """The engine's step, which acts at the end of a batch of micro-steps."""
        if closure is not None:
            raise _C.ConfigError("step(closure) evaluates the model again, which ZeRO cannot do")
        self.engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As :meth:`ZeroEngine.zero_grad`."""
        self.engine.zero_grad()

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied with before backward; 1 unless parameters are fp16."""
        return self.engine.core.loss_scale

    cur_scale = loss_scale

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "engine"):
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
