"""torch's functions that clip, for parameters whose gradients are an engine's."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from zerorun import _C
from zerorun.hooks.torch_clipping import Clip, serve_clipping, warn_that_nothing_changes
from zerorun.shards.shards import Shards, shards_of
from zerorun.shards.state_access import StateAccess


def serve() -> None:
    """From the first call on, torch's clip_grad_norm_ and clip_grad_value_ know engines."""
    serve_clipping(_ENGINES)


class _Engines:
    """All engines of this process."""

    def by_norm(self, parameters: list[nn.Parameter], clip: Clip) -> torch.Tensor | None:
        """The norm of the parameters' averaged gradients, which are clipped by it. Collective. None
        if no engine has gradients of theirs that torch does not see."""
        return _clip(parameters, clip)

    def by_value(self, parameters: list[nn.Parameter], limit: float) -> bool:
        """Limits the elements of the parameters' averaged gradients to -`limit` to `limit`. Those
        that are not finite stay, so that the step is skipped. Collective. False if no engine trains
        any of the parameters."""
        own = _without_torchs(parameters)
        for shards in dict.fromkeys(own.values()):
            if not shards.policy.clips_as_torch:
                warn_that_nothing_changes("clip_grad_value_")
            elif shards.finish_reduction():
                StateAccess(shards).limit_gradients([p for p in own if own[p] is shards], limit)
        return bool(own)

    def by_given_norm(self, parameters: list[nn.Parameter]) -> None:
        """An error, or in DeepSpeed scripts a warning, if an engine trains any of the parameters:
        the norm was made of what torch sees."""
        for shards in dict.fromkeys(_without_torchs(parameters).values()):
            if shards.policy.clips_as_torch:
                raise _C.ConfigError(
                    "clip_grads_with_norm_: the norm is not that of the gradients, since those of "
                    "an engine's parameters are the engine's and .grad is None: "
                    "clip_grad_norm_(parameters, max_norm) makes the norm and clips by it"
                )
            warn_that_nothing_changes("clip_grads_with_norm_")


_ENGINES = _Engines()


def _without_torchs(parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, Shards]:
    """The parameters that engines train, except those with a gradient that torch sees."""
    return {p: shards for p in parameters if p.grad is None and (shards := _trains(p)) is not None}


def _clip(given: list[nn.Parameter], clip: Clip) -> torch.Tensor | None:
    own = _without_torchs(given)
    if not own:
        return None
    shards, *others = dict.fromkeys(own.values())
    if not shards.policy.clips_as_torch:
        warn_that_nothing_changes("clip_grad_norm_")
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
