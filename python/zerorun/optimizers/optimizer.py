"""Optimizers with torch's interface that update this rank's shards in the C++ core."""

import copy
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

from zerorun import _C
from zerorun import torch_seam as seam
from zerorun.agreement import all_or_none
from zerorun.optimizers import parameter_states
from zerorun.optimizers.lr_scheduler import set_rate
from zerorun.optimizers.saved_values import COMMON_STATES, common_states
from zerorun.program_warning import warn
from zerorun.shards.shards import Shards
from zerorun.shards.state_access import StateAccess
from zerorun.shards.torch_optimizer import MODES, GivenOptimizer, TorchStates


def rule_of(optimizer: torch.optim.Optimizer, device: torch.device) -> tuple[str, dict[str, Any]]:
    """The core's Adam or AdamW for torch's if they compute the same, else `optimizer` itself: a
    value of OptimizerConfig.type, and its hyperparameters.

    They do for exactly torch's class (or one with the attribute `zerorun_rule`, and perhaps
    `rule_settings`), with numbers as hyperparameters, and without amsgrad and maximize. `device`:
    where it will run. Raises ConfigError for an optimizer that cannot run on shards.
    """
    groups = optimizer.param_groups
    kind = type(optimizer)
    named = getattr(kind, "zerorun_rule", None)
    if named is not None:
        return named, getattr(optimizer, "rule_settings", {})
    ways = {
        (
            group.get("decoupled_weight_decay", kind is torch.optim.AdamW),
            group.get("bias_correction", True),
        )
        for group in groups
    }
    unusual = any(group.get("amsgrad") or group.get("maximize") for group in groups)
    tensors = any(isinstance(beta, torch.Tensor) for g in groups for beta in g.get("betas", ()))
    known = kind in (torch.optim.Adam, torch.optim.AdamW) or hasattr(kind, "adam_w_mode")
    if not known or unusual or tensors or len(ways) != 1:
        from zerorun.optimizers.optimizer_probe import check_elementwise

        check_elementwise(optimizer, device)
        return _C.EXTERNAL_OPTIMIZER, {}
    is_adamw, corrects = ways.pop()
    settings = {"adam_w_mode": is_adamw} | ({} if corrects else {"bias_correction": False})
    return "AdamW" if is_adamw else "Adam", settings


def compare_rates(groups: list[dict[str, Any]], communicator: _C.Communicator) -> None:
    """Warns if ranks have different learning rates, by which each updates its own part of the
    parameters. Collective."""
    numbers = [group.get("lr") for group in groups]  # an optimizer of one's own may have none
    values = [0.0 if number is None else float(number) for number in numbers]
    rates = torch.tensor(values, dtype=torch.float32, device="cpu")
    least, most = bounds = torch.stack([-rates, rates])
    communicator.all_reduce(bounds, "max", "learning rates")
    for index in (most + least).nonzero().flatten().tolist()[:1]:
        warn(
            f"learning rates differ among the ranks: from {-least[index].item():g} to "
            f"{most[index].item():g} in parameter group {index}. Each rank updates a part of the "
            "model, so schedulers need the same on every rank: the mean of a loss, say"
        )


def load_group_settings(groups: list[dict[str, Any]], settings: list[dict[str, Any]]) -> None:
    """Copies hyperparameters to parameter groups, in their order. Raises CheckpointError if the
    numbers of groups differ."""
    if len(settings) != len(groups):
        raise _C.CheckpointError(
            f"optimizer state has {len(settings)} groups, this optimizer {len(groups)}"
        )
    for group, values in zip(groups, settings, strict=True):
        group.update({k: v for k, v in values.items() if k not in {"params", "lr"}})
        if "lr" in values:
            set_rate(group, values["lr"])


def _parameters_in(optimizer: torch.optim.Optimizer) -> list[int]:
    """How many each group has."""
    return [len(group["params"]) for group in optimizer.param_groups]


class ShardOptimizer(torch.optim.Optimizer):
    """Updates this rank's shards with the hyperparameters of a torch optimizer (`optimizer`), all
    of whose methods call this one's.

    ``param_groups`` are the same dictionaries as that optimizer's, so a scheduler made for either
    of the two changes the learning rate of both. ``lr``, ``weight_decay``, ``betas`` or
    ``momentum``, and ``eps`` are read from them at every step. ``state`` has what this rank stores
    of each parameter (:class:`ParameterStates`).
    """

    states_class = parameter_states.ParameterStates
    # Hyperparameters that nobody has chosen: an import has only those of its source.
    unknown: frozenset[str] = frozenset()

    def __init__(self, shards: Shards, basic: torch.optim.Optimizer) -> None:
        super().__init__(basic.param_groups, basic.defaults)
        self.param_groups = basic.param_groups
        self._states: Any = self.states_class(shards)
        self.state: Any = self._states
        self.optimizer = basic
        self.overflow = False
        self.shards = shards
        self.given = GivenOptimizer(basic, shards.core)
        self._counts = _parameters_in(basic)
        if shards.external:
            shards.torch_states = TorchStates(
                shards.core, shards.layout, self.given, shards.communicator, shards.writes
            )
        else:
            parameter_states.take_states(shards, basic)
        self.given.serve(self)
        shards.until_closed(self.given)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise _C.ConfigError(
            "the optimizer of an engine cannot be copied or pickled, since its states are shared "
            "among the ranks: state_dict() copies this rank's, save_checkpoint saves all"
        )

    def update(self) -> _C.StepResult:
        """Updates the parameters from the reduced gradients. Collective."""
        self._check_groups()
        self._take_replaced_states()
        if self.shards.torch_states is not None:  # torch calls its hooks
            return self._update()
        return self.given.with_step_hooks(self._update)

    def _update(self) -> _C.StepResult:
        core, states = self.shards.core, self.shards.torch_states
        self.shards.writes.take_for_step()
        access = StateAccess(self.shards)
        frozen = access.without_gradient(self.shards.layout.frozen_since())
        if states is None:
            self.tell_hyperparameters()
        updates = self.shards.updates
        finish = updates is None
        try:
            if states is not None:
                indices = [self.shards.layout.ids[parameter] for parameter in frozen]
                result = core.step_with(lambda _: states.step(indices), finish)
            elif frozen:
                result = access.keep(frozen, core.step)
            else:
                result = core.step(finish)
        finally:
            if updates is not None:
                updates.expect()
        self.overflow = not result.applied
        if result.applied:
            self.shards.steps_made += 1
            self.given.forget_states()
        # torch's schedulers look here for whether the optimizer has stepped.
        vars(self.optimizer)[seam.STEP_WAS_CALLED] = True
        return result

    def _check_groups(self) -> None:
        """Raises ConfigError unless the groups are those of the beginning; the list may be
        another."""
        self.param_groups = self.optimizer.param_groups
        count = self.shards.layout.group_count
        if len(self.param_groups) != count:
            raise _C.ConfigError(
                f"step: the optimizer has {len(self.param_groups)} parameter groups, and had "
                f"{count} when its parameters were sharded: make all groups before"
            )
        found = _parameters_in(self)
        if found != self._counts:
            raise _C.ConfigError(
                f"step: the optimizer's groups have {found} parameters, and had {self._counts} "
                "when they were sharded: give initialize all parameters; requires_grad_(False) "
                "leaves some out of a step"
            )

    def _keep_states(self) -> None:
        """Forgets that `optimizer.state` was replaced, as before a load."""
        self.state = self.optimizer.state = self._states

    def _take_replaced_states(self) -> None:
        """After `optimizer.state = {}` of either, on every rank, the states begin anew.
        Collective."""
        states = self.state, self.optimizer.state
        given = [state for state in states if state is not self._states]
        if not given:
            return
        self._keep_states()
        if any(isinstance(g, parameter_states.NoStates) or any(g.values()) for g in given):
            raise _C.ConfigError(
                "optimizer.state was replaced, but the engine has the states, which are as before: "
                "set them with safe_set_full_optimizer_state, or all with load_state_dict"
            )
        # A rank that has replaced them alone makes another call than the others: an error of all.
        self.shards.communicator.barrier("optimizer.state begins anew, on every rank")
        if self.shards.torch_states is not None:
            self.shards.torch_states.forget_common()
        parameter_states.FullStates(self.shards, self.param_groups).put({})

    def tell_hyperparameters(self) -> None:
        """Tells the core's rule what the groups say; another optimizer reads its own."""
        if self.shards.external:
            return
        for target, group in zip(self.shards.core.groups(), self.param_groups, strict=True):
            target.lr = float(group["lr"])
            target.weight_decay = float(group.get("weight_decay", 0.0))
            if "betas" in group:
                target.beta1, target.beta2 = map(float, group["betas"])
            elif "momentum" in group:
                target.beta1 = float(group["momentum"])
            if "eps" in group:
                target.eps = float(group["eps"])

    # The factor of the loss in backward; 1 unless parameters are fp16.
    loss_scale = cur_scale = property(attrgetter("shards.core.loss_scale"))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "shards"):
            raise _C.ConfigError(
                "add_param_group after initialize: the parameters are sharded already; make all "
                "groups before initialize"
            )
        super().add_param_group(param_group)

    def __getattr__(self, name: str) -> Any:
        if name in MODES:  # where the optimizer has them
            return getattr(self.optimizer, name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def group_settings(self) -> list[dict[str, Any]]:
        """The hyperparameters of the groups; the first also has states of no parameter."""
        left_out = self.unknown | {"params"}
        settings = [
            {key: value for key, value in group.items() if key not in left_out}
            for group in self.param_groups
        ]
        states = self.shards.torch_states
        common = {} if states is None else states.common()
        if common:
            settings[0][COMMON_STATES] = copy.deepcopy(common)  # what is saved stays as it is now
        return settings

    def load_group_settings(self, settings: list[dict[str, Any]]) -> None:
        """Loads the result of group_settings(). Raises CheckpointError, before anything changes, if
        the number of groups differs."""
        common = [common_states(group, "optimizer state") for group in settings]
        own = [{k: v for k, v in group.items() if k != COMMON_STATES} for group in settings]
        load_group_settings(self.param_groups, own)
        if self.shards.torch_states is not None:
            for values in common:
                self.shards.torch_states.put_common(values)

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the program's hooks; see :meth:`_state_dict`."""
        return self.given.state_dict(self._state_dict)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, with the program's hooks; see :meth:`_load_state_dict`."""
        self.given.load_state_dict(self._load_state_dict, state_dict)

    def _state_dict(self) -> dict[str, Any]:
        """This rank's states and the hyperparameters of the groups; differs between ranks.

        ``state`` has the intervals of parameters that this rank stores, as one-dimensional tensors
        by name and elements (``"weight[0:128]"``): the optimizer states and, as ``master``, the
        fp32 values of 16-bit parameters. :meth:`ZeroEngine.save_checkpoint` saves states that any
        number of ranks can load.
        """
        return {
            "state": parameter_states.ShardStates(self.shards).get(),
            "param_groups": self.group_settings(),
        }

    def _load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the result of state_dict() of the same rank of as many ranks, or that of a torch
        optimizer, the same on every rank. Collective.

        Raises CheckpointError on every rank, before anything changes, for what does not fit.
        """
        self._keep_states()
        with all_or_none(self.shards.communicator, "load_state_dict"):
            groups, states = state_dict.get("param_groups"), state_dict.get("state")
            if not isinstance(groups, list) or not isinstance(states, dict):
                raise _C.CheckpointError(
                    f"load_state_dict: got {sorted(state_dict)}, expected state and param_groups"
                )
            if any("params" in group for group in groups):  # torch's
                full = parameter_states.FullStates(self.shards, self.param_groups)
                put, groups = full.put, full.check(groups, states)
            else:
                own = parameter_states.ShardStates(self.shards)
                put = own.put
                own.check(states)
        self.load_group_settings(groups)
        put(states)


class ZeroOptimizer(ShardOptimizer):
    """The optimizer that :func:`zerorun.initialize` returns; it steps a :class:`ZeroEngine`."""

    def __init__(self, engine: Any, shards: Shards, basic: torch.optim.Optimizer) -> None:
        setattr(type(self).step, seam.CALLS_HOOKS, True)  # the engine's step, for both
        super().__init__(shards, basic)
        for kind in seam.OPTIMIZER_HOOKS:  # on whichever of the two they are registered
            vars(self)[kind] = vars(basic).setdefault(kind, vars(self)[kind])
        self.engine = engine

    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """The engine's step, which acts at the end of a batch of micro-steps.

        `closure`: called once before it; its loss is returned.
        """
        loss = None if closure is None else torch.enable_grad()(closure)()
        self.engine.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As :meth:`ZeroEngine.zero_grad`."""
        self.engine.zero_grad()
