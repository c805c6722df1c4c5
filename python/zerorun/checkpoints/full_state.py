"""The whole model: parameter by parameter for whoever takes them over, or on one rank."""

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none
from zerorun.model.engine_ranks import EngineRanks, is_marked
from zerorun.model.local_tensor import is_distributed, whole_of
from zerorun.model.partition import gathered, partition_of
from zerorun.model.units import plain_name
from zerorun.whole_file import replacing

_Named = tuple[str, nn.Parameter]


def full_parameters_of(model: nn.Module) -> Iterator[_Named]:
    """Each parameter once, under its first name, full until the next one is asked for. Collective.

    Those that are gathered together follow each other, so each is gathered once.
    """
    together: dict[Any, list[_Named]] = {}
    for name, parameter in model.named_parameters():
        unit = getattr(partition_of(parameter), "unit", parameter)
        together.setdefault(unit, []).append((plain_name(name), parameter))
    for members in together.values():
        with gathered([members[0][1]]):
            yield from members


def full_state_dict(
    model: nn.Module, ranks: EngineRanks, exclude_frozen: bool = False, *, everywhere: bool = False
) -> dict[str, torch.Tensor] | None:
    """The model's state dict in its own dtype, copied to host memory: rank 0's, None on the others,
    unless it is wanted `everywhere`. Names are those of the model that is not compiled.

    Collective. Parameters are gathered one unit at a time. Tied parameters share their copy.
    DTensors become whole. Raises ConfigError where a model is divided among ranks otherwise.
    """
    check_one_model(model, ranks)
    keep = everywhere or ranks.data.rank == 0  # of a DTensor, the first replica's ranks
    copies: dict[nn.Parameter, torch.Tensor] = {}
    for _, parameter in full_parameters_of(model):
        if keep and (parameter.requires_grad or not exclude_frozen):
            copies[parameter] = _on_host(parameter)
    ranks.job.barrier("full state dict")
    if not everywhere and ranks.job.rank > 0:
        return None
    state: dict[str, torch.Tensor] = {}
    for key, value in model.state_dict(keep_vars=True).items():
        name = plain_name(key)
        if not isinstance(value, nn.Parameter):
            state[name] = _on_host(value) if isinstance(value, torch.Tensor) else value
        elif value in copies:
            state[name] = copies[value]
    return state


def check_one_model(model: nn.Module, ranks: EngineRanks) -> None:
    """Raises ConfigError where no rank can make the whole model."""
    if ranks.experts:
        raise _C.ConfigError(
            "the whole model on one rank: its experts are on different ranks: "
            "engine.save_checkpoint() saves them all, and `zerorun ckpt export DIR OUTPUT` makes "
            "one model of that"
        )
    if ranks.model_size == 1:
        return
    whole = ranks.mesh is not None and ranks.mesh.of_dtensors
    for name, parameter in model.named_parameters():
        if whole and (is_distributed(parameter) or not is_marked(parameter)):
            continue
        raise _C.ConfigError(
            f"the whole model on one rank: it is divided among {ranks.model_size} model-parallel "
            f"ranks, and only its own code knows how {name} is: engine.save_checkpoint() saves all "
            "parts, engine.module.state_dict() below stage 3 is this rank's part"
        )


def _on_host(value: torch.Tensor) -> torch.Tensor:
    return whole_of(value).to("cpu", copy=True)


def save_full_state(
    model: nn.Module,
    ranks: EngineRanks,
    directory: str | os.PathLike[str],
    filename: str,
    exclude_frozen: bool = False,
) -> None:
    """Writes full_state_dict into `directory`/`filename`, on rank 0. Collective.

    The file is complete or not there. Raises IoError on every rank.
    """
    state = full_state_dict(model, ranks, exclude_frozen)
    with all_or_none(ranks.job, "saving the model"):
        if state is not None:
            os.makedirs(directory, exist_ok=True)
            with replacing(os.path.join(directory, filename)) as file:
                torch.save(state, file)
