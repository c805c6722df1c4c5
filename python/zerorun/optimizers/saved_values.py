"""What a checkpoint says of a training besides its tensors, compared before anything changes."""

import math
import weakref
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from zerorun import _C
from zerorun.optimizers.lr_scheduler import LrScheduler
from zerorun.process_state import STATE

DECOUPLED = "decoupled_weight_decay"  # torch's name of AdamW's kind of decay in a group
COMMON_STATES = "zerorun_common_states"  # a key of group settings: states of no parameter

_MAX_COUNT = 1 << 62
# What hyperparameters may be, and how many numbers each is to a rule of the core's. A schedule that
# ends at 0 may miss it by its rounding.
_RANGES = {
    "lr": (-1e-6, math.inf, 1),
    "weight_decay": (-1e-6, math.inf, 1),
    "eps": (0.0, math.inf, 1),
    "momentum": (0.0, 1.0, 1),
    "betas": (0.0, 1.0, 2),
}


def whole_number(value: Any, what: str, where: str, *, low: int = 0) -> int:
    """A count out of a file. Raises CheckpointError for what is none."""
    number = value if type(value) is int else _number(value)
    if number is None or number != math.floor(number) or not low <= number <= _MAX_COUNT:
        raise _C.CheckpointError(
            f"{where}: {what} is {_text(value)}, expected a whole number from {low} on"
        )
    return int(number)


def _number(value: Any) -> float | None:
    """The finite number that a value is; None: it is none."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex() or value.is_meta:
            return None
        value = value.item()
    if isinstance(value, (str, bytes)):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def check_groups(groups: Any, where: str, *, external: bool, count: int | None = None) -> None:
    """Raises CheckpointError for hyperparameters that no optimizer takes.

    `external`: of an optimizer of torch's, whose class says how many numbers each of them is.
    `count`: the groups that this optimizer has.
    """
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise _C.CheckpointError(f"{where}: param_groups is {_text(groups)}, expected dictionaries")
    for index, group in enumerate(groups):
        common_states(group, f"{where}: parameter group {index}")
        for key, (low, high, numels) in _RANGES.items():
            value = group.get(key)
            if key not in group or (external and value is None):
                continue
            parts = list(value) if isinstance(value, (list, tuple)) else [value]
            numbers = [number for part in parts if (number := _number(part)) is not None]
            fits = len(numbers) == len(parts) and (external or len(numbers) == numels)
            if not fits or not all(low <= number <= high for number in numbers):
                limits = "0 or more" if math.isinf(high) else "0 to 1"
                raise _C.CheckpointError(
                    f"{where}: {key} of parameter group {index} is {_text(value)}, expected "
                    f"{'numbers' if numels > 1 else 'a number'} of {limits}"
                )
    if count is not None and count != len(groups):
        raise _C.CheckpointError(
            f"{where}: the checkpoint has {len(groups)} parameter groups, this optimizer {count}"
        )


def is_decoupled(kind: str, *, adam_w_mode: bool) -> bool | None:
    """Whether an optimizer of this name decouples weight decay from the gradient; None: it is no
    Adam. As DeepSpeed: "AdamW" always does, "Adam" unless adam_w_mode is false."""
    name = kind.lower().removesuffix("8bit")
    return name == "adamw" or adam_w_mode if name in {"adam", "adamw"} else None


_DECAYS = {
    True: ("AdamW, with decoupled weight decay", "AdamW"),
    False: (
        "Adam with L2, whose weight decay is added to the gradient",
        'torch.optim.Adam, or type "Adam" with "adam_w_mode": false',
    ),
}


def with_own_decay(
    groups: list[dict[str, Any]], saved: bool | None, rule: _C.OptimizerConfig, where: str
) -> list[dict[str, Any]]:
    """The groups for a rule of the core's, which has one kind of weight decay.

    `saved`: the kind, where a group does not say it (None: nothing does). Raises CheckpointError
    for weight decay of the other kind, which keeps the same states.
    """
    own = is_decoupled(rule.type, adam_w_mode=rule.adam_w_mode)
    if own is None:
        return groups
    for group in groups:
        before, decay = group.get(DECOUPLED, saved), group.get("weight_decay", 0)
        if before is None or bool(before) == own or not decay:
            continue
        (was, name), (now, _) = _DECAYS[not own], _DECAYS[own]
        raise _C.CheckpointError(
            f"{where}: the optimizer states are those of {was} ({float(decay):g}), this engine's "
            f"optimizer is {now}, so the next step would be another: give the engine {name}, or "
            "load_optimizer_states=False for the model alone"
        )
    return [group | {DECOUPLED: own} for group in groups]


def common_states(group: dict[str, Any], where: str) -> dict[Any, Any]:
    """The states of no parameter that group settings have. Raises CheckpointError."""
    try:
        return {  # a tensor may be as files had them before they kept its dtype
            key: torch.tensor(value["tensor"])
            if isinstance(value, dict) and value.keys() == {"tensor"}
            else value
            for key, value in group.get(COMMON_STATES, {}).items()
        }
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise _C.CheckpointError(
            f"{where}: {COMMON_STATES} is {_text(group[COMMON_STATES])}, expected values by name"
        ) from error


def check_schedule(scheduler: Any, state: Any, where: str) -> None:
    """Raises CheckpointError for what is not the state of such a schedule."""
    hint = "load_lr_scheduler_states=False leaves this one as it is"
    if not isinstance(state, dict):
        raise _C.CheckpointError(
            f"{where}: lr_scheduler is {_text(state)}, expected a dictionary; {hint}"
        )
    own = scheduler.state_dict() if hasattr(scheduler, "state_dict") else {}
    if isinstance(own, dict) and own and not own.keys() & state.keys():
        raise _C.CheckpointError(
            f"{where}: the state of the schedule has {_text(sorted(map(str, state)))}, this "
            f"engine's {type(scheduler).__name__} keeps {_text(sorted(map(str, own)))}; {hint}"
        )
    if isinstance(scheduler, LrScheduler):
        # Before the first step it is -1.
        whole_number(state["last_batch_iteration"], "last_batch_iteration", where, low=-1)


def copy_of_now(tensor: torch.Tensor, shards: Any) -> torch.Tensor:
    """The tensor, of which check_current() knows by which step it was made, as long as the program
    does not write to it."""
    STATE.copies = STATE.copies or WeakIdKeyDictionary()
    made_at = shards.steps_made, shards.core.step_count
    STATE.copies[tensor] = weakref.ref(shards), made_at, tensor._version
    return tensor


def check_current(states: Any) -> None:
    """Raises ConfigError for such a tensor in them if its engine has stepped since."""
    kept = STATE.copies or {}
    for tensor in filter(torch.is_tensor, tree_leaves(states) if kept else ()):
        found, then, version = kept.get(tensor, (lambda: None, (0, 0), 0))
        shards = found()
        if shards is None or shards.core.closed or tensor._version != version:
            continue
        if (now := (shards.steps_made, shards.core.step_count)) != then:
            raise _C.ConfigError(
                f"torch.distributed.checkpoint: a state dict of step {then[1]} was to be saved "
                f"{now[0] - then[0]} steps later, at step {now[1]}: its values are copies, which "
                "do not follow the engine's, as FSDP2's would. Get it again for each save; to save "
                "what was then, give clones of them"
            )
