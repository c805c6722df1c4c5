"""The optimizer of stage 3, and the whole model for generation."""

# ruff: noqa: F401 - scripts import these names from here

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from zerorun.zero import GatheredParameters

from deepspeed.runtime.base_optimizer import DeepSpeedOptimizer
from deepspeed.runtime.zero.utils import (
    estimate_all_cold as estimate_zero3_model_states_mem_needs_all_cold,
)
from deepspeed.runtime.zero.utils import (
    estimate_all_live as estimate_zero3_model_states_mem_needs_all_live,
)


class DeepSpeedZeroOptimizer_Stage3(DeepSpeedOptimizer):  # noqa: N801 - DeepSpeed's name
    """The optimizer that initialize returns at stage 3."""

    @property
    def fp32_partitioned_groups_flat(self) -> list[torch.Tensor]:
        """As flat_masters(), one for each parameter group."""
        return self.flat_masters()

    def _set_fp32_optimizer_param_groups(self) -> None:
        """The torch optimizer's ``state_dict()`` has all groups at any time."""

    _clear_fp32_optimizer_param_groups = _set_fp32_optimizer_param_groups


@contextlib.contextmanager
def unwrap_model_for_generation(model: Any) -> Iterator[Any]:
    """The module with all of its parameters whole, for generate(). Collective."""
    module = getattr(model, "module", model)
    with GatheredParameters(list(module.parameters())):
        yield module
