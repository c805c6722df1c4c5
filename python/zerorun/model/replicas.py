"""Whether the copies of a parameter on tensor-parallel ranks are equal."""

from __future__ import annotations

import json
import logging

import torch
from torch import nn

from zerorun.agreement import texts_of_all
from zerorun.model.engine_ranks import EngineRanks
from zerorun.model.local_tensor import is_distributed
from zerorun.model.model_layout import ModelLayout

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


def warn_of_different_replicas(layout: ModelLayout, ranks: EngineRanks) -> None:
    """Warns of a parameter that is not marked as a part and has other values on other ranks.

    Norms would count it on one rank only, and nothing makes such copies equal later. Collective.
    """
    if ranks.tensor is None or layout.mesh is None:
        return
    mesh = layout.mesh
    replicas = {
        name: _sum_of_bits(parameter)
        for parameter, name in layout.names.items()
        if not is_distributed(parameter) and not mesh.divides(parameter)
    }
    sums = torch.stack(list(replicas.values())).tolist() if replicas else []
    found = dict(zip(replicas, sums, strict=True))
    others = [json.loads(text) for text in texts_of_all(json.dumps(found), ranks.tensor)]
    apart = [n for n, value in found.items() if any(o.get(n, value) != value for o in others)]
    if apart and ranks.tensor.rank == 0:
        logging.getLogger("zerorun").warning(
            "%d parameters differ between tensor-parallel ranks %s, and are not marked as parts; "
            "the first is %s. Norms count them on the first of these ranks only, and copies that "
            "begin apart stay apart: seed them alike, or mark them (parameter.model_parallel = "
            "True)",
            len(apart),
            list(mesh.tensor_ranks or ()),
            apart[0],
        )


def _sum_of_bits(parameter: nn.Parameter) -> torch.Tensor:
    values = parameter.detach().contiguous()
    integers = _INTEGERS.get(values.element_size(), torch.uint8)
    return values.view(integers).sum(dtype=torch.int64)
