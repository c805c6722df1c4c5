"""Copies of state dicts that torch.save stores without what they view."""

from typing import Any

import torch


def clone_tensors_for_torch_save(item: Any, device: Any = torch.device("cpu")) -> Any:  # noqa: B008
    """`item` with every tensor in nested containers cloned to `device`."""
    if isinstance(item, torch.Tensor):
        return item.detach().clone().to(device)
    if isinstance(item, list | tuple):
        return type(item)(clone_tensors_for_torch_save(value, device) for value in item)
    if isinstance(item, dict):
        return type(item)(
            (key, clone_tensors_for_torch_save(value, device)) for key, value in item.items()
        )
    return item
