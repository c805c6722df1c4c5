"""The masters and states of a parameter group, each as one flat tensor."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from zerorun.optimizers.parameter_states import ParameterStates
from zerorun.shards.state_access import StateAccess

_SETTERS = (
    "deepspeed.utils.safe_set_full_fp32_param, safe_set_local_fp32_param or "
    "GatheredParameters(params, modifier_rank=0)"
)


class FlatMasters(torch.Tensor):
    """A copy of this rank's masters of one group: zerorun keeps them in several places.

    What would change the copy alone raises NotImplementedError; so do its views.
    """

    group: "FlatGroup"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        in_place = name in {"__set__", "__setitem__"} or (name[-1:] == "_" and name[-2:] != "__")
        if in_place and isinstance(args[0], FlatMasters):
            raise NotImplementedError(
                f"{name} on a copy of the optimizer's masters would not reach zerorun's: set them "
                f"with {_SETTERS}"
            )
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and _are_one_memory(result, args):
                return result.as_subclass(cls)
        return result


def _are_one_memory(result: torch.Tensor, args: Any) -> bool:
    given = args[0] if args else None
    return (
        isinstance(given, FlatMasters)
        and result.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    )


class FlatGroup:
    """The parameters of one group, in its order."""

    def __init__(self, shards: Any, parameters: list[nn.Parameter]) -> None:
        self._access = StateAccess(shards)
        self._parameters = [p for p in parameters if shards.layout.is_trainable(p)]
        self._values: torch.Tensor | None = None

    def masters(self) -> FlatMasters:
        """The tensor of this group, with the values of now; always the same one."""
        values = self._flat(lambda p: self._access.get_local(p, "fp32_param"))
        if self._values is None:
            self._values = values
            self._shown = values.as_subclass(FlatMasters)
            self._shown.group = self
        else:
            self._values.copy_(values)
        return self._shown

    def states(self) -> dict[str, Any]:
        """The states of the group's parameters, flat."""
        kept = [self._access.get_kept(parameter) for parameter in self._parameters]
        first = kept[0] if kept else {}
        tensors = {name for name, value in first.items() if getattr(value, "ndim", 0) > 0}
        return {
            name: torch.cat([state[name].flatten() for state in kept]) if name in tensors else value
            for name, value in first.items()
        }

    def _flat(self, part_of: Callable[[nn.Parameter], torch.Tensor | None]) -> torch.Tensor:
        parts = [part for part in map(part_of, self._parameters) if part is not None]
        return torch.cat([part.flatten() for part in parts]) if parts else torch.empty(0)


class FlatStates(ParameterStates):
    """The states by parameter, or by a group's flat masters."""

    def __getitem__(self, parameter: torch.Tensor) -> dict[str, Any]:
        if isinstance(parameter, FlatMasters):
            return parameter.group.states() if len(self) else {}
        return super().__getitem__(parameter)
