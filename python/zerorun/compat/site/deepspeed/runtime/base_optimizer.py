"""The class of the optimizers that initialize returns."""

import functools
from collections.abc import Container, Iterator
from typing import Any

from torch import nn
from zerorun.external import external_parameters
from zerorun.optimizer import ZeroOptimizer

from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum


def _external_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((f"external{i}", p) for i, p in enumerate(external_parameters(module)))


def check_offload_states(engine: Any, include: Container[Any] | None, device: Any) -> None:
    """What DeepSpeed refuses, and what zerorun does not have: states of GPUs stay there."""
    known = {kind.value for kind in OffloadStateTypeEnum}
    unknown = [kind for kind in include or () if getattr(kind, "value", kind) not in known]
    if unknown:
        raise ValueError(f"offload_states: got {unknown}, expected some of {', '.join(known)}")
    if getattr(device, "value", device) not in {"cpu", "none"}:
        raise ValueError(f"offload_states: got device {device!r}, expected 'cpu'")
    if engine.optimizer is None:
        raise AssertionError("offload_states: this engine has no optimizer whose states to move")
    if engine.device.type != "cpu":
        raise NotImplementedError(
            "offload_states is not part of zerorun on GPUs: use offload_optimizer and "
            "offload_param of the configuration, which keep states in host memory throughout"
        )


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

    def offload_states(
        self,
        include: Container[Any] | None = None,
        device: Any = "cpu",
        pin_memory: bool = True,
        non_blocking: bool = False,
    ) -> None:
        """States of CPU ranks are in host memory already."""
        check_offload_states(self.engine, include, device)

    def reload_states(self, non_blocking: bool = False) -> None:
        """As offload_states."""


ZeROOptimizer = DeepSpeedOptimizer
