"""Moving a model's values into an engine, parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none
from zerorun.hooks.parameter_memory import tensor_of, to_write
from zerorun.model.engine_ranks import EngineRanks
from zerorun.model.local_tensor import local_of
from zerorun.model.model_layout import DTYPES, ModelLayout
from zerorun.model.partition import partition_of


class Loading:
    """Fills an engine's masters and parameters with the model's values, those of the first rank
    that has them.

    Values in host memory go to a GPU through memory for one parameter, which all ranks have before
    any gives up a value: an error for lack of it leaves every rank's model whole.
    """

    def __init__(
        self,
        engine: _C.Engine,
        layout: ModelLayout,
        ranks: EngineRanks,
        device: torch.device,
        *,
        round_masters: bool,
    ) -> None:
        """Collective. `round_masters`: masters get the values that the parameters have in their
        own dtype, in which they then go to the GPU."""
        self._engine, self._layout, self._ranks = engine, layout, ranks
        self._device, self._round_masters = device, round_masters
        with all_or_none(ranks.job, "initialize"):
            nbytes = max((self._staged_nbytes(p) for p in layout.names), default=0)
            self._staging = torch.empty(nbytes, dtype=torch.uint8, device=device)

    def __iter__(self) -> Iterator[nn.Parameter]:
        """Loads all parameters. Yields each when the engine has its values, on this rank in full
        where it keeps parameters in full; its own memory may go then. Collective."""
        for parameter in to_write(self._engine, self._layout):
            self._load(parameter)
            yield parameter
        self._engine.refresh_from_masters()

    def _is_staged(self, parameter: nn.Parameter) -> bool:
        own = partition_of(parameter) is None
        return own and self._device.type != "cpu" and local_of(parameter).device.type == "cpu"

    def _staged_dtype(self, parameter: nn.Parameter) -> torch.dtype:
        rounded = self._round_masters and parameter not in self._layout.own_dtype
        return DTYPES[self._engine.param_dtype] if rounded else parameter.dtype

    def _staged_nbytes(self, parameter: nn.Parameter) -> int:
        if not self._is_staged(parameter):
            return 0
        return local_of(parameter).numel() * self._staged_dtype(parameter).itemsize

    @torch.no_grad()
    def _load(self, parameter: nn.Parameter) -> None:
        partition = partition_of(parameter)
        if partition is None:
            self._write(parameter, self._values_of_first(parameter))
            return
        partition.acquire()
        try:
            self._write(parameter, self._layout.flat(parameter, local_of(parameter)))
        finally:
            partition.release()

    def _values_of_first(self, parameter: nn.Parameter) -> torch.Tensor:
        """The values of the first rank that has the parameter, flat. Collective."""
        values = self._layout.flat(parameter, local_of(parameter))
        if self._is_staged(parameter):
            staged = self._staging[: self._staged_nbytes(parameter)]
            staged = self._layout.flat(parameter, staged.view(self._staged_dtype(parameter)))
            values = staged.copy_(values)
        communicator = self._ranks.holding(self._layout.ranks_of.get(parameter, 0))
        if communicator.world_size > 1:
            on_gpu = self._device.type != "cpu"
            broadcast = communicator.broadcast_on_gpu if on_gpu else communicator.broadcast
            broadcast(values, 0, f"initial values of {self._layout.names[parameter]}")
        return values

    def _write(self, parameter: nn.Parameter, values: torch.Tensor) -> None:
        index = self._layout.ids[parameter]
        if not self._engine.is_sharded(index):
            tensor_of(self._engine.parameter(index)).copy_(values)
        for interval in self._engine.state_intervals(index):
            part = values[interval.begin : interval.begin + interval.numel]
            parameter_part = tensor_of(interval.param).copy_(part)
            if interval.master is not None:
                master = tensor_of(interval.master)
                master.copy_(parameter_part if self._round_masters else part)
