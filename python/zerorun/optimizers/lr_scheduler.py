"""The configuration's learning rate schedule, with the interface of torch's schedulers."""

from typing import Any

import torch

from zerorun import _C


def set_rate(group: dict[str, Any], lr: float) -> None:
    """Sets the learning rate of a group. A tensor is changed in place."""
    if isinstance(group.get("lr"), torch.Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


class LrScheduler:
    """Sets ``lr`` of the groups (OneCycle: also ``betas``) after every step.

    The engine calls :meth:`step`, but not after steps that were skipped.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, config: _C.Config) -> None:
        self.optimizer = optimizer
        self._groups = optimizer.param_groups
        base_lrs = [float(group["lr"]) for group in self._groups]
        self._schedule = _C.make_lr_schedule(config, base_lrs)
        self._applied = 0
        self._last_lr = self._set()

    def _set(self) -> list[float]:
        rates = self.get_lr()
        for index, (group, lr) in enumerate(zip(self._groups, rates, strict=True)):
            set_rate(group, lr)
            betas = self._schedule.values(self._applied, index)[1]
            if betas is not None and "betas" in group:
                group["betas"] = betas
        return rates

    @property
    def last_batch_iteration(self) -> int:
        return self._schedule.last_batch_iteration(self._applied)

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Sets the learning rates of the next step, or of the one after `last_batch_iteration`."""
        if last_batch_iteration is None:
            self._applied += 1
        else:
            self._applied = last_batch_iteration - self._schedule.last_batch_iteration(0)
        self._last_lr = self._set()

    def get_lr(self) -> list[float]:
        return [self._schedule.values(self._applied, i)[0] for i in range(len(self._groups))]

    def get_last_lr(self) -> list[float]:
        """The learning rates that were set last, at first those of the beginning."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step(state_dict["last_batch_iteration"])
