"""Which ranks hold which experts of a model, and under which names they are saved."""

import itertools
import json
import re
from typing import Any

from torch import nn

from zerorun import _C, experts
from zerorun.agreement import texts_of_all
from zerorun.model.engine_ranks import EngineRanks
from zerorun.model.model_layout import ModelLayout
from zerorun.model.partition import partition_of

_NUMBERED = re.compile(r"(.*\bdeepspeed_experts\.)(\d+)(\..*)")


def place_experts(layout: ModelLayout, ranks: EngineRanks) -> None:
    """Gives `ranks` a communicator for each group of experts and the layout their places.

    Collective; does nothing where no rank has an expert. Raises ConfigError.
    """
    marked = {p: name for p, name in layout.names.items() if experts.is_expert(p)}
    own = [[n, list(p.shape), str(getattr(p, "group_name", None))] for p, n in marked.items()]
    rows = [json.loads(text) for text in texts_of_all(json.dumps(own), ranks.job)]
    used = {group for of_rank in rows for _, _, group in of_rank}
    if not used:
        return
    _check(marked, ranks)
    _check_alike(rows)
    examples = {str(getattr(p, "group_name", None)): name for p, name in reversed(marked.items())}
    groups = [experts.named(n, examples.get(n, "of another rank")) for n in sorted(used)]
    for each in groups:
        if each.size == 1:
            continue  # every rank has all experts
        first, place = min(each.data_ranks), each.data_ranks.index(ranks.job.rank)
        label = f"ranks of expert {each.rank} of {each.name}"
        ranks.experts[each.name] = ranks.job.split(first, place, label)
        index = len(ranks.experts)
        members = [p for p in marked if getattr(p, "group_name", None) == each.name]
        layout.ranks_of.update(dict.fromkeys(members, index))
        layout.saved_names.update(_global_names(members, layout, each))
    _add_elsewhere(layout, ranks)


def _check(marked: dict[nn.Parameter, str], ranks: EngineRanks) -> None:
    if ranks.model_size > 1:
        raise _C.ConfigError(
            "expert parallelism in a model that is divided among "
            f"{ranks.model_size} model-parallel ranks is not supported: use one of the two"
        )
    for parameter, name in marked.items():
        if partition_of(parameter) is not None:
            raise _C.ConfigError(
                f"parameter {name} is an expert's (allreduce = False), made under zero.Init, "
                "where all ranks have rank 0's: make the experts without zero.Init"
            )


def _check_alike(rows: list[list[list[Any]]]) -> None:
    """`rows`: of each rank the name, shape and group of its experts' parameters."""
    for rank, other in enumerate(rows):
        pairs = itertools.zip_longest(rows[0], other)
        for index, (expected, got) in enumerate(pairs):
            if expected is None or got is None or expected[1:] != got[1:]:
                raise _C.ConfigError(
                    f"experts: their parameter number {index} is {_described(expected)} on rank 0 "
                    f"and {_described(got)} on rank {rank}: expected as many experts on each rank, "
                    "of the same shapes and group_name"
                )


def _described(row: list[Any] | None) -> str:
    return "missing" if row is None else f"{row[0]} of shape {tuple(row[1])} in {row[2]}"


def _global_names(
    members: list[nn.Parameter], layout: ModelLayout, groups: experts.ExpertGroups
) -> dict[nn.Parameter, str]:
    """Names that tell the experts of all ranks apart. DeepSpeed's numbered ones get their numbers
    in the whole layer, so that any number of ranks can share them later."""
    counts: dict[str, int] = {}
    matches = {p: _NUMBERED.fullmatch(layout.names[p]) for p in members}
    for match in matches.values():
        if match:
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    found = {}
    for parameter, match in matches.items():
        if match:
            number = groups.rank * counts[match[1]] + int(match[2])
            found[parameter] = f"{match[1]}{number}{match[3]}"
        else:
            found[parameter] = f"{layout.names[parameter]}.expert_rank_{groups.rank}"
    return found


def _add_elsewhere(layout: ModelLayout, ranks: EngineRanks) -> None:
    """The experts of other ranks, as checkpoints have to know them."""
    own = [
        (
            layout.saved_names[p],
            layout.stored_shape(p),
            layout.group_of.get(p, 0),
            layout.is_trainable(p),
            layout.core_dtype(p),
        )
        for p in layout.ranks_of
    ]
    rows = [json.loads(text) for text in texts_of_all(json.dumps(own), ranks.job)]
    for index, parameter in enumerate(layout.ranks_of):
        others = {row[index][0]: row[index][1:] for row in rows}
        del others[layout.saved_names[parameter]]
        specs = layout.elsewhere[parameter] = []
        for name, (shape, group, trainable, dtype) in others.items():
            specs.append(_C.ParameterSpec(name, shape, "", group, trainable))
            specs[-1].ranks, specs[-1].dtype = _C.ELSEWHERE, dtype
