"""torch's clip_grad_norm_, clip_grad_value_ and GradScaler, for parameters whose gradients are an
engine's."""

import functools
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad

from zerorun import _C, torch_seam
from zerorun.agreement import on_any_rank
from zerorun.program_warning import warn
from zerorun.shards.shards import Shards, shards_of
from zerorun.shards.state_access import StateAccess

_BY_NORM = "_clip_grads_with_norm_"  # from 2.6 on; also what clip_grad_norm_ calls


def _warn_that_nothing_changes(function: str) -> None:
    warn(
        f"{function} changes nothing: the gradients of an engine's parameters are the "
        "engine's. gradient_clipping in its configuration clips them in step(), and "
        "get_global_grad_norm() is their norm"
    )


def _listed(parameters: Any) -> list[Any]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


@functools.cache
def serve() -> None:
    """From the first call on, torch's functions also clip the gradients that engines keep, under
    the names by which modules have imported them, too."""
    norm, value = clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_
    by_norm = getattr(clip_grad, _BY_NORM, norm)  # 2.4 and 2.5 have none

    @functools.wraps(norm)
    def clip_norm(
        parameters: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        given = _listed(parameters)
        found = _clip(given, float(max_norm), float(norm_type), error_if_nonfinite)
        if found is not None:
            return found
        seen = _with_gradients(given) if given else parameters  # torch warns of no parameters
        return norm(seen, max_norm, norm_type, error_if_nonfinite, *args, **kwargs)

    @functools.wraps(by_norm)
    def clip_by_norm(
        parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any
    ) -> None:
        given = _listed(parameters)
        _refuse_given_norm(given)
        by_norm(given, max_norm, total_norm, *args, **kwargs)

    @functools.wraps(value)
    def clip_value(parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> None:
        given = _listed(parameters)
        served = _limit(given, float(clip_value))
        if not served or _with_gradients(given):
            value(given, clip_value, *args, **kwargs)

    functions: dict[str, Any] = {"clip_grad_norm_": clip_norm, "clip_grad_value_": clip_value}
    if hasattr(clip_grad, _BY_NORM):
        # Who kept torch's clip_grad_norm_ in no module comes here, too, and is told.
        functions[_BY_NORM] = clip_by_norm
    torch_seam.replace_imported(clip_grad, functions)


def serve_scalers() -> None:
    """torch's scalers of losses, FSDP's where a program has imported it, also unscale the gradients
    that engines keep."""
    fsdp = sys.modules.get("torch.distributed.fsdp.sharded_grad_scaler")
    for scaler in (GradScaler, getattr(fsdp, "ShardedGradScaler", None)):
        if scaler is not None and not hasattr(scaler._unscale_grads_, "__wrapped__"):
            _serve_scaler(scaler)


def _serve_scaler(scaler: Any) -> None:
    unscale = scaler._unscale_grads_

    @functools.wraps(unscale)
    def unscale_gradients(
        self: Any, optimizer: Any, inv_scale: torch.Tensor, found_inf: torch.Tensor, *args: Any
    ) -> Any:
        if not _unscale(optimizer, inv_scale, found_inf):
            return unscale(self, optimizer, inv_scale, found_inf, *args)
        return {found_inf.device: found_inf}

    torch_seam.replace(scaler, "_unscale_grads_", unscale_gradients)


def _with_gradients(parameters: list[Any]) -> list[Any]:
    """Those of which torch sees a gradient: it clips no others."""
    return [parameter for parameter in parameters if parameter.grad is not None]


@torch.no_grad()
def _limit(parameters: list[nn.Parameter], limit: float) -> bool:
    """Limits the elements of the parameters' averaged gradients to -`limit` to `limit`. Those
    that are not finite stay, so that the step is skipped. Collective. False if no engine trains
    any of the parameters."""
    own = _without_torchs(parameters)
    for shards in dict.fromkeys(own.values()):
        if not shards.policy.clips_as_torch:
            _warn_that_nothing_changes("clip_grad_value_")
        elif shards.finish_reduction():
            StateAccess(shards).limit_gradients([p for p in own if own[p] is shards], limit)
    return bool(own)


@torch.no_grad()
def _unscale(
    optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor
) -> bool:
    """Multiplies the optimizer's gradients by `inv_scale`, and sets `found_inf` to 1 if one of any
    rank is not finite. Collective. False if they are torch's, or there are none."""
    own = _without_torchs(p for group in optimizer.param_groups for p in group["params"])
    shards = next(iter(own.values()), None)
    if shards is None or not shards.policy.clips_as_torch:
        return False
    if shards.core.loss_scaler is not None:
        raise _C.ConfigError(
            "GradScaler: an engine in fp16 scales losses itself: use engine.backward(loss) alone"
        )
    if shards.settings.batch.accumulation_steps > 1:
        raise _C.ConfigError(
            f"GradScaler: the engine counts {shards.settings.batch.accumulation_steps} micro-steps "
            "to a batch, of which a skipped step would leave gradients: set accumulation_steps to "
            "1, and call the scaler's step after the last backward of a batch, which add up"
        )
    if not shards.finish_reduction():
        return False
    access = StateAccess(shards)
    finite = [part.isfinite().all().to(shards.device) for part in access.owned_gradients(own)]
    overflow = bool(finite) and not torch.stack(finite).all()
    found_inf.fill_(on_any_rank(overflow, shards.ranks.job, "GradScaler"))
    access.scale_gradients(own, inv_scale.item())
    return True


def _refuse_given_norm(parameters: list[nn.Parameter]) -> None:
    """An error, or in DeepSpeed scripts a warning, if an engine trains any of the parameters:
    the norm was made of what torch sees."""
    for shards in dict.fromkeys(_without_torchs(parameters).values()):
        if shards.policy.clips_as_torch:
            raise _C.ConfigError(
                "clip_grads_with_norm_: the norm is not that of the gradients, since those of "
                "an engine's parameters are the engine's and .grad is None: "
                "torch.nn.utils.clip_grad_norm_(parameters, max_norm) makes the norm and clips by "
                "it, but not what a variable has kept of it since before the engine was made"
            )
        _warn_that_nothing_changes("clip_grads_with_norm_")


def _without_torchs(parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, Shards]:
    """The parameters that engines train, except those with a gradient that torch sees."""
    found = ((p, shards_of(p)) for p in parameters if p.grad is None)
    return {p: s for p, s in found if s is not None and s.layout.is_trainable(p)}


@torch.no_grad()
def _clip(
    given: list[nn.Parameter], max_norm: float, order: float, error_if_nonfinite: bool
) -> torch.Tensor | None:
    """The norm of the parameters' averaged gradients, which are clipped by it. Collective. None if
    no engine has gradients of theirs that torch does not see."""
    own = _without_torchs(given)
    if not own:
        return None
    shards, *others = dict.fromkeys(own.values())
    if not shards.policy.clips_as_torch:
        _warn_that_nothing_changes("clip_grad_norm_")
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
    if not shards.finish_reduction():
        return None
    access = StateAccess(shards)
    norms = [  # some gradients rest on the host, where a part of the states is offloaded
        torch.linalg.vector_norm(part, order, dtype=torch.float64).to(shards.device)
        for part in access.owned_gradients(own)
    ]
    ranks = shards.communicator
    all_norms = torch.zeros(ranks.world_size, dtype=torch.float64, device="cpu")
    if norms:
        all_norms[ranks.rank] = torch.linalg.vector_norm(torch.stack(norms), order)
    # Not rounded before they are added: a stage decides what is whose. An integer's sum is the one
    # rank's bits.
    ranks.all_reduce(all_norms.view(torch.int64), "sum", "clip_grad_norm_")
    norm = torch.linalg.vector_norm(all_norms, order) * shards.core.gradient_average
    if error_if_nonfinite and not norm.isfinite():
        raise RuntimeError(
            f"clip_grad_norm_: the norm of order {order} is {norm.item()}, which "
            "error_if_nonfinite=True makes an error"
        )
    factor = max_norm / (norm.item() + 1e-6)
    # A gradient that is not finite stays, so that the step sees it and is skipped.
    if factor < 1.0 and norm.isfinite():
        access.scale_gradients(own, factor)
    return norm.to(shards.device, torch.float32)
