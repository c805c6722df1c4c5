"""The classes of the optimizers that initialize returns, by stage, and what comes with them."""

import contextlib
import functools
import math
import types
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from zerorun.agreement import all_or_none, on_any_rank
from zerorun.hooks.parameter_memory import masters_from_parameters
from zerorun.hooks.shared_unit import external_parameters
from zerorun.optimizers.lr_scheduler import set_rate
from zerorun.optimizers.optimizer import ZeroOptimizer
from zerorun.optimizers.saved_values import is_decoupled
from zerorun.shards.state_access import StateAccess
from zerorun.shards.torch_optimizer import MODES
from zerorun.zero import GatheredParameters

from deepspeed.ops._optimizers import FusedAdam
from deepspeed.runtime._flat_groups import FlatGroup, FlatStateDict, FlatStates
from deepspeed.runtime._norms import has_inf_or_nan
from deepspeed.runtime.zero.utils import estimate_all_cold, estimate_all_live
from deepspeed.utils.z3_leaf_module import get_z3_leaf_modules

# --- what libraries reach for in the optimizer ---


def _external_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((f"external{i}", p) for i, p in enumerate(external_parameters(module)))


class ParameterOffload:
    """The hooks that TRL takes off the model before it generates in a gather, and puts back.

    zerorun's hooks stay: within a gather they only count.
    """

    # The order of gathers is learned, never required, so never invalid.
    param_coordinator = types.SimpleNamespace(
        is_invalid_trace=lambda: False, _invalidate_trace=lambda: None
    )

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.forward_hooks: list[Any] = []
        self.backward_hooks: list[Any] = []
        module.ds_external_parameters = functools.partial(_external_parameters, module)

    def get_param_coordinator(self) -> types.SimpleNamespace:
        return self.param_coordinator

    def _register_deepspeed_module(self, module: nn.Module, count: list[int] | None = None) -> None:
        """The hooks are there."""

    _register_hooks_recursively = _register_deepspeed_module


class _LossScaler:
    """The attributes of a loss scaler that scripts read, with the current values."""

    scale_factor = 2.0

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        settings = engine._shards.settings.precision.loss_scaler
        self.scale_window = settings.window
        self.min_scale = self.min_loss_scale = settings.min_scale
        self.delayed_shift = settings.hysteresis
        self.consecutive_hysteresis = settings.consecutive_hysteresis
        self.dynamic = self.dynamic_loss_scale = engine.dynamic_loss_scale()

    loss_scale = cur_scale = property(lambda self: self._engine.loss_scale())
    cur_iter = property(attrgetter("_engine.global_steps"))  # with those that were skipped


# What reaches the thing that a script looked for in DeepSpeed's optimizer.
_STATES = (
    "deepspeed.utils.safe_get_full_fp32_param, safe_get_full_grad and "
    "safe_get_full_optimizer_state (and _local_, and _set_) reach what it holds"
)
_NORM = (
    "engine.get_global_grad_norm() is the norm of the last step's gradient; "
    "deepspeed.utils.safe_get_full_grad has the gradients of single parameters"
)


class DeepSpeedOptimizer(ZeroOptimizer):
    """zerorun's optimizer with what libraries reach for in DeepSpeed's ZeRO-3 optimizer."""

    states_class = FlatStates

    def __init__(self, engine: Any, shards: Any, basic: torch.optim.Optimizer) -> None:
        super().__init__(engine, shards, basic)
        self._flat_state_dict = FlatStateDict(shards)

    def _state_dict(self) -> dict[str, Any]:
        scaler = self.shards.core.loss_scaler
        state = self._flat_state_dict.get() | {"param_groups": self.group_settings()}
        return state if scaler is None else state | {"loss_scaler": scaler}

    def _load_state_dict(self, state_dict: dict[str, Any]) -> None:
        with all_or_none(self.shards.communicator, "load_state_dict"):
            state_dict = self._flat_state_dict.split(state_dict)
        super()._load_state_dict(state_dict)
        core = self.shards.core
        core.set_progress(core.step_count, core.skipped_steps, state_dict.get("loss_scaler"))
        self.agree_on_states()

    def agree_on_states(self) -> None:
        """Every rank's state_dict() has the states that some rank has. Collective."""
        self._flat_state_dict.agree()

    def update(self) -> Any:
        result = super().update()
        if result.applied and not self._flat_state_dict.is_agreed:
            self.agree_on_states()
        return result

    # The name of the core's rule; for isinstance() of DeepSpeed's optimizer classes.
    fused_rule = property(attrgetter("shards.settings.optimizer.type"))
    clip_grad = property(attrgetter("shards.settings.gradient_clipping"))
    loss_scale_config = property(attrgetter("loss_scaler"))  # the name at stage 0
    dynamic_loss_scale = property(lambda self: self.engine.dynamic_loss_scale())
    # Of the parameters; the second is the name at stage 0.
    dtype = low_precision_dtype = property(lambda self: self.engine.get_data_types()[0])
    bit16_groups = fp16_groups = property(
        lambda self: [list(group["params"]) for group in self.param_groups]
    )
    # The norm of the last step's gradient, before clipping.
    _global_grad_norm = property(attrgetter("engine.grad_norm"))

    @property
    def adam_w_mode(self) -> bool | None:
        """True if weight decay is apart from the gradient; None for other rules than Adam's."""
        return is_decoupled(self.fused_rule, adam_w_mode=self.shards.settings.optimizer.adam_w_mode)

    @functools.cached_property
    def parameter_offload(self) -> ParameterOffload:
        return ParameterOffload(self.engine.module)

    @functools.cached_property
    def loss_scaler(self) -> _LossScaler:
        return _LossScaler(self.engine)

    @property
    def averaged_gradients(self) -> dict[int, list[torch.Tensor | None]]:
        """This rank's parts of the reduced gradients, flat, by group. Collective."""
        access = StateAccess(self.shards)
        groups = enumerate(self.param_groups)
        return {i: [access.get_local(p, "grad") for p in group["params"]] for i, group in groups}

    @functools.cached_property
    def _flat_groups(self) -> list[FlatGroup]:
        return [FlatGroup(self.shards, group["params"]) for group in self.param_groups]

    def flat_masters(self) -> list[torch.Tensor]:
        """A copy of this rank's masters, flat and fp32, a tensor for each parameter group: the same
        ones at each call, with the values of now. They refuse to be changed."""
        return [group.masters() for group in self._flat_groups]

    def _half_without_zero(self) -> Any:
        """This optimizer, if DeepSpeed has one of these at its stage and in its dtype."""
        if self.engine.zero_optimization_stage() > 0 or self.dtype.itemsize == 4:
            raise AttributeError("fp32_groups_flat and fp32_groups are there at stage 0 in 16 bits")
        return self

    @property
    def fp32_groups(self) -> list[list[torch.Tensor]]:
        """A copy of each parameter's master, by group, at stage 0 in 16 bits. Collective."""
        access = StateAccess(self._half_without_zero().shards)
        found = [[access.get_full(p, "fp32_param") for p in group] for group in self.bit16_groups]
        return [[master for master in group if master is not None] for group in found]

    @property
    def fp32_groups_flat(self) -> list[torch.Tensor]:
        """The same, each group as one tensor. Collective."""
        empty = torch.empty(0, device=self.shards.device)
        return [torch.cat([empty, *map(torch.flatten, group)]) for group in self.fp32_groups]

    def get_fp32_grad_partitions(self) -> dict[int, dict[int, torch.Tensor | None]]:
        """Likewise, by group and place there."""
        return {i: dict(enumerate(found)) for i, found in self.averaged_gradients.items()}

    def check_overflow(self, *_ignored: Any, **_options: Any) -> bool:
        """True if the gradient that the next step takes is not finite on some rank; without one,
        whether that of the last step was not. Collective."""
        if not self.shards.finish_reduction():
            return self.overflow
        parts = [p for group in self.averaged_gradients.values() for p in group if p is not None]
        overflow = any(map(has_inf_or_nan, parts))
        return on_any_rank(overflow, self.shards.ranks.job, "check_overflow")

    @property
    def skip_step(self) -> bool:
        """Set to True after backward, the step is skipped as if the gradient were not finite, as
        another model's was not. Collective."""
        return False

    @skip_step.setter
    def skip_step(self, skip: bool) -> None:
        layout = self.shards.layout
        if skip and self.shards.finish_reduction():
            trained = filter(layout.is_trainable, layout.names)
            StateAccess(self.shards).scale_gradients(trained, math.inf)

    def needs_scaler(self) -> bool:
        """True if backward() is for engine.scale(loss) only."""
        return self.dtype == torch.float16 or self.engine._shards.settings.precision.scales_loss

    def get_lr(self) -> Any:
        return self.param_groups[0]["lr"]

    def set_lr(self, lr: float) -> None:
        for group in self.param_groups:
            set_rate(group, lr)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in MODES:
            return super().__getattr__(name)
        instead = _NORM if "norm" in name else _STATES
        raise AttributeError(
            f"'{type(self).__name__}' object has no attribute '{name}': it is zerorun's optimizer. "
            f"{instead}"
        )

    def refresh_fp32_params(self) -> None:
        """Masters take the values of the parameters, which the program has loaded. Collective."""
        masters_from_parameters(self.shards.core, self.shards.layout)
        self.shards.writes.forget()

    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        """The engine's."""
        self.engine.offload_states(*args, **kwargs)

    def reload_states(self, non_blocking: bool = False) -> None:
        """Likewise."""
        self.engine.reload_states(non_blocking)


ZeROOptimizer = DeepSpeedOptimizer


class DeepSpeedZeroOptimizer(DeepSpeedOptimizer):
    """The optimizer that initialize returns at stages 1 and 2."""

    single_partition_of_fp32_groups = property(DeepSpeedOptimizer.flat_masters)


class DeepSpeedZeroOptimizer_Stage3(DeepSpeedOptimizer):  # noqa: N801 - DeepSpeed's name
    """The optimizer that initialize returns at stage 3."""

    fp32_partitioned_groups_flat = property(DeepSpeedOptimizer.flat_masters)

    @property
    def leaf_parameters(self) -> dict[nn.Module, list[nn.Parameter]]:
        """By module that the program has marked to be gathered as a whole."""
        leaves = get_z3_leaf_modules(self.engine.module)
        return {leaf: list(leaf.parameters()) for leaf in leaves}

    def _set_fp32_optimizer_param_groups(self) -> None:
        """The torch optimizer's ``state_dict()`` has all groups at any time."""

    _clear_fp32_optimizer_param_groups = _set_fp32_optimizer_param_groups


@contextlib.contextmanager
def unwrap_model_for_generation(model: Any) -> Iterator[Any]:
    """The module with all of its parameters whole, for generate(). Collective."""
    module = getattr(model, "module", model)
    with GatheredParameters(list(module.parameters())):
        yield module


class _HalfKind(type):
    """For isinstance(): what initialize returns at stage 0 in fp16 or bf16, by whether that is the
    configuration's Adam, or a FusedAdam of the program's."""

    is_fused: bool

    def __instancecheck__(cls, instance: Any) -> bool:
        if not isinstance(instance, DeepSpeedOptimizer):
            return False
        if instance.engine.zero_optimization_stage() > 0 or instance.dtype.itemsize == 4:
            return False
        return isinstance(instance.engine.client_optimizer or instance, FusedAdam) is cls.is_fused


class FP16_Optimizer(metaclass=_HalfKind):  # noqa: N801 - DeepSpeed's name
    is_fused = True


class FP16_UnfusedOptimizer(metaclass=_HalfKind):  # noqa: N801 - DeepSpeed's name
    is_fused = False


def estimate_zero2_model_states_mem_needs_all_cold(
    total_params: int, num_gpus_per_node: int = 1, num_nodes: int = 1, **ignored: Any
) -> None:
    """For a number of parameters."""
    estimate_all_cold(total_params, 0, num_gpus_per_node, num_nodes, **ignored)


estimate_zero3_model_states_mem_needs_all_cold = estimate_all_cold
estimate_zero2_model_states_mem_needs_all_live = estimate_all_live
estimate_zero3_model_states_mem_needs_all_live = estimate_all_live
