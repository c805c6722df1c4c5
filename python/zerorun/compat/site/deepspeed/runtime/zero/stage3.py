"""The optimizer of stage 3, and the whole model for generation."""

import contextlib
from collections.abc import Iterator
from typing import Any

from zerorun.zero import GatheredParameters

from deepspeed.runtime.base_optimizer import DeepSpeedOptimizer


class DeepSpeedZeroOptimizer_Stage3(DeepSpeedOptimizer):  # noqa: N801 - DeepSpeed's name
    """What initialize returns at stage 3."""


@contextlib.contextmanager
def unwrap_model_for_generation(model: Any) -> Iterator[Any]:
    """The module with all of its parameters whole, for generate(). Collective."""
    module = getattr(model, "module", model)
    with GatheredParameters(list(module.parameters())):
        yield module
