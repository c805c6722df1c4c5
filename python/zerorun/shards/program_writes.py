"""Values that a program has written to parameters whose masters are elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from zerorun import _C
from zerorun.hooks.parameter_memory import keep_precise, tensor_of
from zerorun.model.model_layout import ModelLayout

__all__ = ["ProgramWrites"]


class ProgramWrites:
    """Takes what a program writes to parameters over into their masters, from which the next step
    would make the old values again.

    The engine itself writes to memory that PyTorch does not see, so PyTorch's count of in-place
    changes is that of the program. It does not count those through ``parameter.data``. What the
    engine has taken over by other ways (a gather) is as precise afterwards as before.

    `parameters`: those that are whole on every rank. Ranks write the same values, as to a
    replicated model; nothing here is collective.
    """

    def __init__(
        self, core: _C.Engine, layout: ModelLayout, parameters: Iterable[nn.Parameter]
    ) -> None:
        self._core, self._layout = core, layout
        self._parameters = [p for p in parameters if layout.is_trainable(p)]
        self._versions = self._count()

    def _count(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]

    def take(self) -> None:
        """Before masters are read or written, or a step is made of them."""
        found = self._count()
        if found == self._versions:
            return
        pairs = zip(self._parameters, self._versions, found, strict=True)
        self._versions = found
        with torch.no_grad():
            for parameter in [p for p, before, now in pairs if before != now]:
                for interval in self._core.state_intervals(self._layout.ids[parameter]):
                    if interval.master is not None:
                        keep_precise(interval, tensor_of(interval.master))
        self._core.accept_changes()
