"""What programs take of DeepSpeed's checkpoints: names of files, and copies for torch.save."""

import os
from typing import Any

import torch


def get_model_ckpt_name_for_rank(base_folder: str, mp_rank_str: str) -> str:
    """Where DeepSpeed keeps the module of a model-parallel rank."""
    return os.path.join(base_folder, f"mp_rank_{mp_rank_str}_model_states.pt")


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
