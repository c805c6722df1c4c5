"""Questions about parameters and about what models take and return."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import graph
from zerorun.zero import ZeroParamStatus


def filter_empty_parameters(params: Any) -> Any:
    """Parameters, or groups of them, without those of no elements and groups of only such."""
    if not isinstance(params, list | tuple) or not params:
        return params
    if not isinstance(params[0], dict):
        return [p for p in params if p.numel() > 0]
    groups = [{**group, "params": filter_empty_parameters([*group["params"]])} for group in params]
    return [group for group in groups if group["params"]]


def is_optimized_parameter(param: Any) -> bool:
    """True for what an optimizer has something to do with: trainable, and not empty."""
    return bool(param.requires_grad and getattr(param, "ds_numel", param.numel()) > 0)


def get_inactive_params(param_list: Iterable[Any]) -> list[Any]:
    """Those that are sharded, and not gathered at the moment."""
    missing = ZeroParamStatus.NOT_AVAILABLE
    return [p for p in param_list if getattr(p, "ds_status", None) == missing]


def is_transformers_cache(obj: Any) -> bool:
    return any(
        kind.__name__ == "Cache" and kind.__module__ == "transformers.cache_utils"
        for kind in type(obj).__mro__
    )


def compare_tensors_in_structures(inputs1: Any, inputs2: Any) -> bool:
    """True for two lists, or two dictionaries, of equal tensors and values; caches of transformers
    are equal if they are of one class."""
    if type(inputs1) is not type(inputs2) or not isinstance(inputs1, list | dict):
        return False
    if isinstance(inputs1, dict):
        if inputs1.keys() != inputs2.keys():
            return False
        inputs1, inputs2 = list(inputs1.values()), [inputs2[key] for key in inputs1]
    return len(inputs1) == len(inputs2) and all(map(_are_equal, inputs1, inputs2))


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other.to(one.device))
    if is_transformers_cache(one) and is_transformers_cache(other):
        return type(one) is type(other)
    return bool(one == other)


def maybe_loss_for_backward(value: Any) -> bool:
    """True for a tensor of one element that has a graph."""
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.grad_fn is not None


def check_internal_apis_for_count_used_parameters() -> bool:
    """True where PyTorch can say what a backward that is under way will reach."""
    names = ("_current_graph_task_id", "_will_engine_execute_node")
    has_nodes = hasattr(graph, "_get_grad_fn_or_grad_acc")
    return has_nodes and all(hasattr(torch._C, name) for name in names)


def count_used_parameters_in_backward(parameters: Iterable[Any]) -> int:
    """How many of the parameters the backward that is under way reaches. For hooks within it:
    raises RuntimeError elsewhere."""
    if not check_internal_apis_for_count_used_parameters():
        raise AssertionError("this PyTorch does not say what a backward reaches")
    if torch._C._current_graph_task_id() == -1:
        raise RuntimeError("count_used_parameters_in_backward is for hooks within a backward")
    trained = [p for p in parameters if isinstance(p, torch.Tensor) and p.requires_grad]
    with torch.enable_grad():  # hooks run without, and older PyTorch makes nodes with it only
        nodes = {graph._get_grad_fn_or_grad_acc(p) for p in trained} - {None}
    return sum(map(torch._C._will_engine_execute_node, nodes))
