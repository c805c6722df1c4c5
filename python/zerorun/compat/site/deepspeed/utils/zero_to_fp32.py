"""deepspeed.utils.zero_to_fp32: whole models out of checkpoints."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from zerorun.consolidate import fp32_state_dict, save_fp32_model

__all__ = [
    "convert_zero_checkpoint_to_fp32_state_dict",
    "get_fp32_state_dict_from_zero_checkpoint",
    "load_state_dict_from_zero_checkpoint",
]


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> Mapping[str, torch.Tensor]:
    """The model in fp32. `lazy_mode` asks for tensors that are read when used; these are read."""
    return fp32_state_dict(checkpoint_dir, tag, exclude_frozen=exclude_frozen_parameters)


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str,
    output_dir: str,
    max_shard_size: Any = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Writes the model in fp32 into `output_dir`, with an index where it needs several files."""
    save_fp32_model(
        checkpoint_dir,
        output_dir,
        tag=tag,
        max_shard_size=max_shard_size,
        safe_serialization=safe_serialization,
        exclude_frozen=exclude_frozen_parameters,
    )


def load_state_dict_from_zero_checkpoint(
    model: nn.Module, checkpoint_dir: str, tag: str | None = None
) -> nn.Module:
    """The model on the CPU with the checkpoint's values; not usable with its engine any more."""
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag)
    model = model.cpu()
    model.load_state_dict(state, strict=False)
    return model
