"""Models that FSDP2 has sharded (fully_shard, transformers' DistributedConfig) become zerorun's.

Each of their DTensors is replaced by an ordinary parameter, one at a time: at stage 3 by one that
is partitioned as under zero.Init. So no rank holds more than its shards and one full parameter.
"""

import gc
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zerorun import _C, communicator, torch_seam
from zerorun.agreement import texts_of_all
from zerorun.model.engine_ranks import EngineRanks, Mesh
from zerorun.model.model_layout import param_groups_of
from zerorun.model.private_partition import PrivatePartition
from zerorun.model.tensors import check_placements, is_distributed, mesh_ranks_of


def is_fully_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 has sharded the model, or modules of it."""
    return any(_sharded_modules(model))


def adopt(
    model: nn.Module, optimizer: Any, model_parameters: Any, mesh: Mesh | None, stage: int
) -> Any:
    """Takes a model from FSDP2, if that has sharded it; returns `model_parameters` with the new
    parameters. The groups of `optimizer` get them, too. Collective for such a model.

    Raises ConfigError, before anything changes, for DTensors that are not sharded over exactly the
    data-parallel ranks or have hooks, and for an optimizer that has states.
    """
    sharded = list(_sharded_modules(model))
    if not sharded:
        return model_parameters
    ranks = EngineRanks.of(communicator.world(), mesh)
    for module in sharded:
        module.reshard()  # a forward may have left full parameters
    names = {p: name for name, p in model.named_parameters() if is_distributed(p)}
    _check(names, optimizer, ranks)
    groups = [] if model_parameters is None else param_groups_of(model, model_parameters)
    torch_seam.undo_fully_shard(sharded)
    gc.collect()  # of FSDP's records, which have cycles and hold the shards
    _forget_distribution(model)
    places: dict[nn.Parameter, list[tuple[Any, Any]]] = {parameter: [] for parameter in names}
    for container in _containers(model, groups, optimizer):
        keys = container if isinstance(container, dict) else range(len(container))
        for key in keys:
            if isinstance(container[key], torch.Tensor) and container[key] in places:
                places[container[key]].append((container, key))
    names.clear()
    while places:
        given, found = places.popitem()
        whole: Any = given.detach()
        made = nn.Parameter(whole.full_tensor(), given.requires_grad)
        vars(made).update(vars(given))  # what the program has noted there
        if stage == 3:
            PrivatePartition(made, ranks.data, ranks.data_ranks)
        for container, key in found:
            container[key] = made
    return None if model_parameters is None else groups


def _sharded_modules(model: nn.Module) -> Iterator[Any]:
    """Those that fully_shard was called on, the innermost first."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", ())
    return (module for module in reversed(list(model.modules())) if isinstance(module, kind))


def _check(names: dict[nn.Parameter, str], optimizer: Any, ranks: EngineRanks) -> None:
    """Raises ConfigError for what cannot be adopted, on every rank alike."""
    data = ranks.mesh.data_ranks if ranks.mesh is not None else range(ranks.job.world_size)
    own = "\n".join(f"{n} {tuple(p.shape)} {p.dtype} {p.placements}" for p, n in names.items())  # type: ignore[attr-defined]
    for rank, text in enumerate(texts_of_all(own, ranks.data)):
        lines = zip([*own.splitlines(), "nothing"], [*text.splitlines(), "nothing"], strict=False)
        different = next(((a, b) for a, b in lines if a != b), None)
        if different is not None:
            raise _C.ConfigError(
                f"the model's DTensors differ: rank {ranks.data.rank} has {different[0]}, rank "
                f"{rank} has {different[1]}: make the same model on every rank"
            )
    for parameter, name in names.items():
        check_placements(name, parameter)
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise _C.ConfigError(
                f"parameter {name} has hooks for its gradient, and zerorun replaces the DTensors "
                "of fully_shard: register hooks on model.parameters() after this call"
            )
        found = mesh_ranks_of(parameter) or set()
        if found - set(data):
            raise _C.ConfigError(
                f"parameter {name} is sharded over ranks {sorted(found)}, by fully_shard and by "
                f"tensor parallelism, but ranks {list(data)} have the same part of the model: "
                "leave fully_shard out (DistributedConfig(tp_size=...) without fsdp_size), since "
                "zerorun shards each part over its data-parallel ranks"
            )
        if found != set(data):
            raise _C.ConfigError(
                f"parameter {name} is sharded over ranks {sorted(found)}, but the data-parallel "
                f"ranks are {list(data)}: give fully_shard (DistributedConfig) a mesh of all of "
                "them, and shard_group_size or device_mesh to zerorun for several copies"
            )
    if isinstance(optimizer, torch.optim.Optimizer) and optimizer.state:
        raise _C.ConfigError(
            "the optimizer has states of DTensors: make a new one, save the old one's states with "
            "torch.distributed.checkpoint and load them with engine.load_checkpoint"
        )


def _containers(model: nn.Module, groups: list[dict[str, Any]], optimizer: Any) -> Iterator[Any]:
    """The dicts and lists in which parameters are to be replaced."""
    for module in model.modules():
        yield module._parameters
    for group in groups:
        yield group["params"]
    if isinstance(optimizer, torch.optim.Optimizer):
        for group in optimizer.param_groups:
            yield group["params"]


def _forget_distribution(model: nn.Module) -> None:
    """FSDP's marks on the modules go, and a model of transformers is no longer one that it has
    distributed itself, which its save_pretrained and its Trainer would ask for its mesh."""
    for module in model.modules():
        distributed = torch_seam.MARKS_OF_TRANSFORMERS[0] in vars(module)
        for name in torch_seam.MARKS_OF_FSDP + torch_seam.MARKS_OF_TRANSFORMERS * distributed:
            vars(module).pop(name, None)  # transformers' class has the defaults
        if getattr(getattr(module, "config", None), "distributed_config", None) is not None:
            module.config.distributed_config = None  # type: ignore[union-attr]
