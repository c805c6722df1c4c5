"""torch.nn.utils.clip_grad_norm_ of parameters whose gradients are an engine's."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from zerorun import _C
from zerorun.hooks.torch_clipping import Clip, serve_clipping
from zerorun.shards.shards import Shards, shards_of
from zerorun.shards.state_access import StateAccess

__all__ = ["serve"]


def serve() -> None:
    """From the first call on, torch's clip_grad_norm_ knows engines."""
    serve_clipping(_clip)


def _clip(parameters: Iterable[nn.Parameter], clip: Clip) -> torch.Tensor | None:
    """The norm of the parameters' averaged gradients, which are clipped by it. Collective. None if
    no engine has gradients of theirs that torch does not see."""
    given = list(parameters)
    own = {p: shards for p in given if p.grad is None and (shards := _trains(p)) is not None}
    if not own:
        return None
    shards, *others = dict.fromkeys(own.values())
    if not shards.clips_as_torch:
        clip.warn()
        return None
    if others or any(p.grad is not None for p in given):
        raise _C.ConfigError(
            "clip_grad_norm_: the gradients are not all of one engine: call it once for each "
            "engine's parameters, and once for those whose .grad is torch's"
        )
    if shards.ranks.experts or shards.ranks.model_size > 1:
        raise _C.ConfigError(
            "clip_grad_norm_: this model is divided among the ranks, and the gradient's norm is "
            "that of all its parts: zerorun.shard(..., clip=...) clips by it in step()"
        )
    return _clip_in(shards, list(own), clip) if shards.finish_reduction() else None


def _trains(parameter: nn.Parameter) -> Shards | None:
    """The engine that has the parameter's gradient."""
    shards = shards_of(parameter)
    return shards if shards is not None and shards.layout.is_trainable(parameter) else None


def _clip_in(shards: Shards, parameters: list[nn.Parameter], clip: Clip) -> torch.Tensor:
    access = StateAccess(shards)
    owned = access.owned_gradients(parameters)
    norms = [torch.linalg.vector_norm(part, clip.norm_type, dtype=torch.float64) for part in owned]
    ranks = shards.communicator
    all_norms = torch.zeros(ranks.world_size)
    if norms:
        all_norms[ranks.rank] = torch.linalg.vector_norm(torch.stack(norms), clip.norm_type)
    ranks.all_reduce(all_norms, "sum", "clip_grad_norm_")
    norm = torch.linalg.vector_norm(all_norms, clip.norm_type) * shards.core.gradient_average
    clip.check(norm)
    factor = clip.max_norm / (norm.item() + 1e-6)
    # A gradient that is not finite stays, so that the step sees it and is skipped.
    if factor < 1.0 and norm.isfinite():
        access.scale_gradients(parameters, factor)
    return norm
