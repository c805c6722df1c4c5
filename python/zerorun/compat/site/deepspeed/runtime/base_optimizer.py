"""The class of the optimizers that initialize returns."""

import functools
from collections.abc import Iterator
from typing import Any

from torch import nn
from zerorun.external import external_parameters
from zerorun.optimizer import ZeroOptimizer


def _external_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((f"external{i}", p) for i, p in enumerate(external_parameters(module)))


class _Coordinator:
    """Order of gathers: learned, never required, so never invalid."""

    @staticmethod
    def is_invalid_trace() -> bool:
        return False

    @staticmethod
    def _invalidate_trace() -> None:
        """Nothing depends on the trace."""


class ParameterOffload:
    """The hooks that TRL takes off the model before it generates in a gather, and puts back.

    zerorun's hooks stay: within a gather they only count.
    """

    param_coordinator = _Coordinator()

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.forward_hooks: list[Any] = []
        self.backward_hooks: list[Any] = []
        module.ds_external_parameters = functools.partial(_external_parameters, module)

    def _register_deepspeed_module(self, module: nn.Module, count: list[int] | None = None) -> None:
        """The hooks are there."""

    _register_hooks_recursively = _register_deepspeed_module


class DeepSpeedOptimizer(ZeroOptimizer):
    """zerorun's optimizer with what libraries reach for in DeepSpeed's ZeRO-3 optimizer."""

    @property
    def fused_rule(self) -> str:
        """The name of the core's rule; for isinstance() of DeepSpeed's optimizer classes."""
        return self.shards.settings.optimizer.type

    @functools.cached_property
    def parameter_offload(self) -> ParameterOffload:
        return ParameterOffload(self.engine.module)

    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        """The engine's."""
        self.engine.offload_states(*args, **kwargs)

    def reload_states(self, non_blocking: bool = False) -> None:
        """Likewise."""
        self.engine.reload_states(non_blocking)


ZeROOptimizer = DeepSpeedOptimizer
