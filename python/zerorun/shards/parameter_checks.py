"""What a program does with an engine's parameters that steps, or a state dict, would not see."""

import contextlib
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.hooks.parameter_memory import full_view, keep_precise, take_written, tensor_of
from zerorun.model.local_tensor import is_distributed, local_of, place
from zerorun.model.model_layout import ModelLayout
from zerorun.model.partition import partition_of
from zerorun.model.uncopied import ModuleHook
from zerorun.program_warning import warn

CHECK_PARTS = 16  # calls of check() that look at every parameter once


class AssignedGradients:
    """Notices gradients that a program has assigned to parameters of an engine, which steps would
    not see."""

    def __init__(self, layout: ModelLayout) -> None:
        self._names = layout.names
        self._trained = [p for p in layout.names if layout.is_trainable(p)]
        self._checks = 0

    def check(self, *, everything: bool = False) -> None:
        """Raises ConfigError naming a parameter to which the program has assigned a gradient.

        Each call looks at a part of the parameters, so that a step does not pay for all, unless
        `everything` is true.
        """
        part = slice(None) if everything else slice(self._checks % CHECK_PARTS, None, CHECK_PARTS)
        self._checks += 1
        for parameter in self._trained[part]:
            if parameter.grad is not None:
                raise _C.ConfigError(
                    f"parameter {self._names[parameter]} has a .grad that was assigned to "
                    "it, which a step would not use: gradients come from backward, or are set with "
                    "zerorun.zero.safe_set_full_grad"
                )


class ProgramWrites:
    """Takes what a program writes to parameters over into their masters, from which the next step
    would make the old values again.

    The engine itself writes to memory that PyTorch does not see, so PyTorch's count of in-place
    changes is that of the program. It does not count those through ``parameter.data``. What the
    engine has taken over by other ways (a gather) is as precise afterwards as before.

    A ``parameter.data`` that the program has replaced (PEFT's CPT does in every forward) is noticed
    by its address: the values go to the engine's memory, which the parameter then views again.

    `parameters`: those that are whole on every rank. Ranks write the same values, as to a
    replicated model; nothing but take_for_step() is collective. `replicated`: at stage 0.
    """

    def __init__(
        self,
        core: _C.Engine,
        layout: ModelLayout,
        parameters: Iterable[nn.Parameter],
        *,
        replicated: bool,
    ) -> None:
        self._core, self._layout, self._replicated = core, layout, replicated
        self._whole = sorted(parameters, key=is_distributed)
        self._plain = sum(not is_distributed(parameter) for parameter in self._whole)
        self._addresses = self._find()
        trained = [p for p in self._whole if layout.is_trainable(p)]
        # At stage 3 one rank may write within a gather, which takes that over.
        self._counted = [p for p in trained if partition_of(p) is None]
        self._versions = self._count()
        self._is_ahead = False  # of the masters on other ranks

    def _find(self) -> list[int]:
        """Where parameters are, those that are no DTensors first, without a question for each."""
        plain, distributed = self._whole[: self._plain], self._whole[self._plain :]
        return [p.data_ptr() for p in plain] + [local_of(p).data_ptr() for p in distributed]

    def _count(self) -> list[int]:
        return [parameter._version for parameter in self._counted]

    def forget(self) -> None:
        """After all that was written has been taken over by another way (a load)."""
        self._versions = self._count()

    def take(self) -> None:
        """Before masters are read or written, or a step is made of them. Raises ConfigError naming
        a parameter whose memory was replaced by one of another kind."""
        with torch.no_grad():
            written = self._put_back()
            found = self._count()
            if found == self._versions and not written:
                return
            pairs = zip(self._counted, self._versions, found, strict=True)
            written |= {parameter: None for parameter, before, now in pairs if before != now}
            self._versions = found
            for parameter in written:
                take_written(self._core, self._layout.ids[parameter])
                for interval in self._core.state_intervals(self._layout.ids[parameter]):
                    if interval.master is not None:
                        keep_precise(interval, tensor_of(interval.master))
        self._core.accept_changes()
        self._is_ahead = self._replicated

    def take_for_step(self) -> None:
        """As take(), also into the masters that a rank keeps of another's part at stage 0.
        Collective."""
        self.take()
        if self._is_ahead:
            self._core.refresh_from_masters()
        self._is_ahead = False

    def _put_back(self) -> dict[nn.Parameter, None]:
        """Returns the parameters that viewed other memory than the engine's."""
        found = self._find()
        if found == self._addresses:
            return {}
        moved: dict[nn.Parameter, None] = {}
        for parameter, expected, now in zip(self._whole, self._addresses, found, strict=True):
            partition = partition_of(parameter)
            if expected == now or (partition is not None and partition.is_held):
                continue
            values, full = local_of(parameter), full_view(self._core, self._layout, parameter)
            self._check_kind(parameter, values, full)
            full.copy_(values)
            if partition is not None:  # the rank's part is apart
                flat = self._layout.flat(parameter, full)
                for interval in self._core.state_intervals(self._layout.ids[parameter]):
                    part = flat[interval.begin : interval.begin + interval.numel]
                    tensor_of(interval.param).copy_(part)
            place(parameter, full)
            moved[parameter] = None
        return moved

    def _check_kind(
        self, parameter: nn.Parameter, values: torch.Tensor, full: torch.Tensor
    ) -> None:
        got, expected = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (values, full))
        if got != expected or values.device != full.device:
            raise _C.ConfigError(
                f"parameter {self._layout.names[parameter]}: its .data was replaced after "
                f"initialize: got {got} on {values.device}, expected {expected} on {full.device}: "
                "move or cast the model before initialize"
            )


# --- empty parameters in state dicts ---

EMPTY_PARAMETERS = (
    "sharded at stage 3. engine.full_state_dict() is the whole model's, save_checkpoint saves all; "
    "within zerorun.zero.GatheredParameters(model.parameters()) a state dict is whole"
)


class EmptyStateWarnings:
    """Until remove(), warns when a state dict of the model, of a module in it, or of what one of
    them is in, has parameters that are empty: once for each dictionary."""

    def __init__(self, model: nn.Module, sharded: set[nn.Parameter]) -> None:
        self._last: weakref.ref[Any] | None = None  # the dictionary that was warned of
        self._handles = []
        for module in model.modules():
            names = {name for name, p in module.named_parameters(recurse=False) if p in sharded}
            if names:
                hook = ModuleHook(self._look_at, names)
                self._handles.append(module._register_state_dict_hook(hook))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _look_at(
        self, names: set[str], _module: nn.Module, state: Any, prefix: str, _metadata: Any
    ) -> None:
        empty = sorted(name for name in names if _is_empty(state.get(prefix + name)))
        if not empty or (self._last is not None and self._last() is state):
            return
        with contextlib.suppress(TypeError):  # a plain dictionary of the caller's
            self._last = weakref.ref(state)
        warn(
            f"state_dict: {prefix}{empty[0]} is empty, as others may be, since it is "
            f"{EMPTY_PARAMETERS}"
        )


def _is_empty(value: Any) -> bool:
    """True for values of a parameter that is empty; whoever keeps the parameter itself knows."""
    is_value = isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
    return is_value and local_of(value).shape == torch.Size([0])
