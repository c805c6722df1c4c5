"""Copies of gathered parameters in autocast's dtype, for stage 3.

Autocast casts a weight for each product and autograd saves the result, not the weight: of all
modules together that is the whole model in 16 bits on every rank. Here the copy is made where the
module reads its weight, so that its memory can go and come with the call that holds the unit. The
numbers are autocast's, which leaves a weight of its dtype as it is.
"""

import functools
import weakref
from typing import Any, Protocol

import torch
from torch import nn

from zerorun import torch_seam


class _Told(Protocol):
    def autocast_begins(self) -> None:
        """torch.autocast was entered in this process."""


_told: weakref.WeakSet[_Told] = weakref.WeakSet()


def on_autocast(hooks: _Told) -> None:
    """Tells it from here on, so that nothing has to look for autocast at every read."""
    _told.add(hooks)
    _replace_enter()


@functools.cache
def _replace_enter() -> None:
    enter = torch.autocast.__enter__

    @functools.wraps(enter)
    def enter_and_tell(autocast: torch.autocast) -> Any:
        entered = enter(autocast)
        for hooks in list(_told):
            hooks.autocast_begins()
        return entered

    torch_seam.replace(torch.autocast, "__enter__", enter_and_tell)


# Forwards that give their parameters to a product and to nothing else.
_PRODUCTS = {
    kind.forward
    for kind in (
        *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
        *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    )
}


def casts_what_it_reads(module: nn.Module) -> bool:
    """True if autocast casts all parameters of the module when its forward reads them."""
    return type(module).forward in _PRODUCTS and "forward" not in vars(module)


class _Copy:
    """A parameter that was cast: it has memory while calls hold it, for forward or backward."""

    def __init__(self, parameter: nn.Parameter, dtype: torch.dtype) -> None:
        self._parameter = parameter
        self.tensor = parameter.to(dtype)
        # Shares the memory, but not the count of changes by which autograd notices them.
        self._values = self.tensor.data
        self._holders = 0
        self._is_empty = False

    def hold(self) -> None:
        """While the parameter is full."""
        self._holders += 1
        if self._is_empty:
            self._values.untyped_storage().resize_(self._values.nbytes)
            self._values.copy_(self._parameter.detach())
            self._is_empty = False

    def release(self) -> None:
        self._holders -= 1
        if self._holders > 0:
            return
        if self._values.is_cuda:  # which may be another stream than the one it was made on
            self._values.record_stream(torch.cuda.current_stream(self._values.device))
        self._values.untyped_storage().resize_(0)
        self._is_empty = True


Casts = dict[tuple[nn.Parameter, torch.dtype, bool], _Copy]


class AutocastCopies:
    """The copies that one call of a module holds, of those of the whole forward (`known`): a
    parameter is cast once for all calls in it, as autocast does."""

    __slots__ = ("_known", "_own")

    def __init__(self, known: Casts) -> None:
        self._known = known
        self._own: Casts = {}

    def get(self, parameter: nn.Parameter, dtype: torch.dtype) -> torch.Tensor:
        key = parameter, dtype, torch.is_grad_enabled()
        if key not in self._own:
            if key not in self._known:
                self._known[key] = _Copy(parameter, dtype)
            self._own[key] = self._known[key]
            self._own[key].hold()
        return self._own[key].tensor

    def hold(self) -> None:
        """For backward, once the parameters are full."""
        for copy in self._own.values():
            copy.hold()

    def release(self) -> None:
        for copy in self._own.values():
            copy.release()

    def end_forward(self) -> None:
        self.release()
        # Those without a graph are for no backward.
        self._own = {key: copy for key, copy in self._own.items() if key[2]}

    def let_go(self) -> None:
        """Leaves them as they are for as long as autograd has them."""
        self._own.clear()
