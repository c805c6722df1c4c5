"""torch's AveragedModel, which would average parameters that are empty on this rank."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from torch.optim.swa_utils import AveragedModel

from zerorun import _C


@functools.cache
def serve_moving_averages(is_empty: Any) -> None:
    """From the first call on, an update from or of parameters of which `is_empty` is true raises
    ConfigError: both may be empty, and nothing else would tell."""
    update = AveragedModel.update_parameters

    @functools.wraps(update)
    def update_parameters(average: Any, model: Any) -> None:
        parameters = itertools.chain(model.named_parameters(), average.module.named_parameters())
        for name, parameter in parameters:
            if is_empty(parameter):
                raise _C.ConfigError(
                    f"AveragedModel: parameter {name} is empty, since it is sharded at stage 3: "
                    "make and update the average within "
                    "zerorun.zero.GatheredParameters(model.parameters())"
                )
        update(average, model)

    AveragedModel.update_parameters = update_parameters  # type: ignore[method-assign, assignment]
