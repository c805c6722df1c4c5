"""Values of optimizer states that can be read and not be changed."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_CHANGE_NO_VALUE = {"requires_grad_", "detach_", "share_memory_"}


def _is_view(result: Any, given: torch.Tensor) -> bool:
    if not isinstance(result, torch.Tensor) or result.layout != torch.strided:
        return False
    if result is given._base:
        return False  # a compiler asks for the base of each
    return result.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()


class PartOfState(torch.Tensor):
    """Values of a state that programs may read: a copy, or not all that this rank has of it.

    What would change these values alone, or a view of them, raises NotImplementedError, but for
    what this class does not see: ``numpy()``, iteration, ``torch.distributed``.
    """

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name, keywords = getattr(func, "__name__", ""), kwargs or {}
        in_place = name in {"__set__", "__setitem__"} or (name[-1:] == "_" and name[-2:] != "__")
        in_place = (in_place and name not in _CHANGE_NO_VALUE) or keywords.get("inplace", False)
        first = args[0] if args else keywords.get("self", keywords.get("input"))
        changed = [*tree_leaves(first)] if in_place else []  # several of torch._foreach_
        changed += tree_leaves(keywords.get("out"))
        if any(isinstance(each, PartOfState) for each in changed):
            raise NotImplementedError(
                f"{name} on a copy or part of the optimizer's values would leave others as they "
                "are: set them with safe_set_full_fp32_param, safe_set_full_optimizer_state or "
                "GatheredParameters(params, modifier_rank=0)"
            )
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **keywords)
            if not isinstance(first, PartOfState):
                return result
            if type(result) in {list, tuple}:
                return type(result)(
                    each.as_subclass(cls) if _is_view(each, first) else each for each in result
                )
            return result.as_subclass(cls) if _is_view(result, first) else result

    # Copies, also in files, are tensors like others.
    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return copy.deepcopy(self.as_subclass(torch.Tensor), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)
