"""A stage 3 policy as the weights that vLLM takes over (its WeightSource, as documented for 0.33).

engine = zerorun.shard(policy, optimizer=...)
trainer = WeightTransferTrainerFactory.trainer_init(info, client=client, source=Policy(engine))
trainer.send_weights()  # after each step; on all ranks
"""

import functools
from collections.abc import Iterator

import torch
import zerorun
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource


class Policy(WeightSource):
    """Whole tensors from rank 0, in the order of the engine's stream."""

    def __init__(self, engine: zerorun.ZeroEngine, dtype: torch.dtype = torch.bfloat16) -> None:
        self._engine, self._dtype = engine, dtype

    @functools.cached_property
    def metadata(self) -> list[ParamMeta]:
        """Collective, once: every rank sees names and shapes of all tensors."""
        return [
            ParamMeta(tensor.name, tensor.dtype, tuple(tensor.shape), owners=(0,))
            for bucket in self._engine.stream_parameters(dtype=self._dtype)
            for tensor in bucket.tensors
        ]

    def iter_full(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective: also ranks that own nothing go to the end."""
        for bucket in self._engine.stream_parameters(dtype=self._dtype):
            yield from bucket.items()
