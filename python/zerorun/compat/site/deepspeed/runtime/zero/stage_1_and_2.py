"""The optimizer of stages 1 and 2."""

# ruff: noqa: F401 - scripts import these names from here

from typing import Any

import torch

from deepspeed.runtime.base_optimizer import DeepSpeedOptimizer
from deepspeed.runtime.zero.utils import estimate_all_cold
from deepspeed.runtime.zero.utils import (
    estimate_all_live as estimate_zero2_model_states_mem_needs_all_live,
)


class DeepSpeedZeroOptimizer(DeepSpeedOptimizer):
    """The optimizer that initialize returns at stages 1 and 2."""

    @property
    def single_partition_of_fp32_groups(self) -> list[torch.Tensor]:
        """As flat_masters(), one for each parameter group."""
        return self.flat_masters()


def estimate_zero2_model_states_mem_needs_all_cold(
    total_params: int, num_gpus_per_node: int = 1, num_nodes: int = 1, **ignored: Any
) -> None:
    """For a number of parameters."""
    estimate_all_cold(total_params, 0, num_gpus_per_node, num_nodes, **ignored)
