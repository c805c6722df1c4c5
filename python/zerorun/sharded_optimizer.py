"""A sharded optimizer for programs that keep their own model wrapper and loop."""

import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from zerorun import _C, communicator, config, torch_seam
from zerorun.agreement import bytes_of_all
from zerorun.checkpoints import torch_state_dicts
from zerorun.checkpoints.shard_files import Chunks, assemble, own_chunks
from zerorun.device import gpu_of, local_device, shared_device
from zerorun.model.engine_ranks import EngineRanks
from zerorun.model.model_layout import ModelLayout
from zerorun.optimizers.optimizer import ShardOptimizer, rule_of
from zerorun.optimizers.parameter_states import indices_of
from zerorun.shards.shards import Shards, take_over

_SETTINGS = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.0,
    "zero_optimization": {"stage": 1},
}


def _named(groups: list[dict[str, Any]]) -> Iterator[tuple[str, nn.Parameter]]:
    """The groups' parameters, named as in their groups and by their place there.

    The place makes names unique, also of several models.
    """
    for index, group in enumerate(groups):
        names = group.get("param_names", ["parameter"] * len(group["params"]))
        for place, (name, parameter) in enumerate(zip(names, group["params"], strict=True)):
            yield f"{name}[{index}][{place}]", parameter


def _shards_of(optimizer: torch.optim.Optimizer) -> Shards:
    settings = config.parse(_SETTINGS).config
    groups = optimizer.param_groups
    device = shared_device(_named(groups)) or local_device()
    rule = rule_of(optimizer, device)
    gpu = gpu_of(device)
    world = communicator.world(settings.comm_timeout_s)
    dtype = settings.precision.param_dtype
    layout = ModelLayout.of_parameters(_named(groups), groups, dtype)
    own = world.duplicate(settings.comm_timeout_s, gpu)
    adapted = _C.adapt_config(settings, layout.dtype, 1, *rule)
    return Shards(layout, adapted, EngineRanks(own, own), device)


class ShardedOptimizer(ShardOptimizer):
    """Shards the states of a torch optimizer over the ranks (ZeRO-1), with or without DDP.

    ::

        optimizer = zerorun.ShardedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))

    :meth:`step` averages the gradients over the ranks (no change if DistributedDataParallel has
    averaged them), updates this rank's shards (fused for torch's Adam and AdamW), and gathers the
    new parameters. The constructor gives all ranks rank 0's parameters; move the model to its
    device before. A parameter without a gradient is updated with a gradient of zeros. 16-bit
    parameters get fp32 masters.

    A GradScaler needs gradients that are already averaged, as with DistributedDataParallel. It
    checks only this rank's gradients, and would otherwise skip the step on this rank alone.

    The constructor, :meth:`step`, :meth:`consolidate_state_dict` and :meth:`load_state_dict` are
    collective. Raises ConfigError for an optimizer that cannot run on shards (docs/python.md).
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        torch_seam.check()
        torch_state_dicts.serve()
        take_over((p for group in optimizer.param_groups for p in group["params"]), left=True)
        with _shards_of(optimizer) as shards:
            super().__init__(shards, optimizer)
        shards.serve(self)
        self._collect = [
            (parameter, shards.collector.hook(index))
            for parameter, index in shards.layout.ids.items()
            if shards.layout.is_trainable(parameter)
        ]
        self._consolidated: dict[int, Any] | None = None

    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Takes the gradients (`.grad` is None afterwards) and updates the parameters. Collective.

        `closure`: called once before the update; its loss is returned.
        """
        loss = None if closure is None else torch.enable_grad()(closure)()
        for parameter, collect in self._collect:
            collect(parameter)
        self.shards.core.end_micro_step()
        self.shards.writes.check_assigned()
        with torch_seam.without_hooks_of_all():  # torch has called them for this one
            self.update()
        self._consolidated = None
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        torch.optim.Optimizer.zero_grad(self, set_to_none)

    # --- states ---

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collects all states on rank `to`, for its :meth:`state_dict`. Collective.

        Call it again after further steps.
        """
        shards = self.shards
        chunks: Chunks = {}
        stream = io.BytesIO()
        torch.save(own_chunks(shards), stream)
        for data in bytes_of_all(stream.getvalue(), shards.communicator, "optimizer states"):
            loaded = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
            for name, *chunk in loaded:
                chunks.setdefault(name, []).append(tuple(chunk))
        if shards.communicator.rank != to:
            return
        states = {}
        for parameter, index in indices_of(self.param_groups).items():
            name, shape = shards.layout.names[parameter], shards.layout.shapes[parameter]
            state = assemble(chunks.get(name, []), 0, shape.numel(), name)
            states[index] = {  # step counts and the like as they are
                key: value.view(shape)
                if getattr(value, "shape", None) == (shape.numel(),)
                else value
                for key, value in state.items()
            }
        self._consolidated = {key: value for key, value in states.items() if value}

    def _state_dict(self) -> dict[str, Any]:
        """The full states in the format of the wrapped optimizer.

        Raises ConfigError except on the rank passed to :meth:`consolidate_state_dict`, and after a
        step that followed it.
        """
        if self._consolidated is None:
            raise _C.ConfigError(
                "state_dict: each rank has its shards only; call consolidate_state_dict() on all "
                "ranks first, after the last step, and state_dict() on the rank it names"
            )
        groups, start = [], 0
        for group in self.param_groups:
            count = len(group["params"])
            kept = {key: value for key, value in group.items() if key != "params"}
            groups.append(kept | {"params": list(range(start, start + count))})
            start += count
        return {"state": self._consolidated, "param_groups": groups}
