"""deepspeed.utils.zero_to_fp32: whole models out of checkpoints, zerorun's and DeepSpeed's."""

import glob
import os
import re
import stat
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from zerorun.consolidate import DTYPE_NAMES, fp32_state_dict, lazy_state_dict, save_model

from deepspeed.utils.logging import logger


def atoi(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def natural_keys(text: str) -> list[int | str]:
    """For sorting names with numbers by the numbers."""
    return [atoi(part) for part in re.split(r"(\d+)", text)]


def get_checkpoint_files(checkpoint_dir: str, glob_pattern: str) -> list[str]:
    """Files of one tag's folder, by number. FileNotFoundError when there is none."""
    files = glob.glob(os.path.join(glob.escape(checkpoint_dir), glob_pattern))
    if not files:
        raise FileNotFoundError(f"can't find {glob_pattern} files in directory '{checkpoint_dir}'")
    return sorted(files, key=natural_keys)


def _is_zeroruns(checkpoint_dir: str) -> bool:
    return os.path.isfile(os.path.join(checkpoint_dir, "checkpoint.json"))


def get_model_state_file(checkpoint_dir: str, zero_stage: int) -> str:
    """The file that describes the model: of a checkpoint of zerorun's the manifest."""
    if not os.path.isdir(checkpoint_dir):
        raise FileNotFoundError(f"Directory '{checkpoint_dir}' doesn't exist")
    ranked = "zero_pp_rank_0_" if zero_stage == 3 else ""
    own = _is_zeroruns(checkpoint_dir)
    name = "checkpoint.json" if own else f"{ranked}mp_rank_00_model_states.pt"
    path = os.path.join(checkpoint_dir, name)
    if not os.path.exists(path):
        raise FileNotFoundError(f"can't find model states file at '{path}'")
    return path


def get_optim_files(checkpoint_dir: str) -> list[str]:
    """The ranks' files: of a checkpoint of zerorun's those with values and states."""
    own = _is_zeroruns(checkpoint_dir)
    pattern = "rank*-*.safetensors" if own else "*_optim_states.pt"
    return get_checkpoint_files(checkpoint_dir, pattern)


def get_model_state_files(checkpoint_dir: str) -> list[str]:
    pattern = "checkpoint.json" if _is_zeroruns(checkpoint_dir) else "*_model_states.pt"
    return get_checkpoint_files(checkpoint_dir, pattern)


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> Mapping[str, Any]:
    """The model in fp32. `lazy_mode`: tensors with ``shape`` and ``dtype`` that are read when
    their ``contiguous()`` is called."""
    make = lazy_state_dict if lazy_mode else fp32_state_dict
    return make(checkpoint_dir, tag, exclude_frozen=exclude_frozen_parameters)


def to_torch_tensor(
    state_dict: Mapping[str, Any], return_empty_tensor: bool = False, dtype: Any = None
) -> dict[str, torch.Tensor]:
    """The tensors of a lazy state dict; tied ones share one."""
    wanted = None if dtype is None else _dtype_of(dtype)
    made: dict[int, torch.Tensor] = {}
    for value in state_dict.values():
        if id(value) not in made:
            kept = wanted if wanted and value.dtype.is_floating_point else value.dtype
            if return_empty_tensor:
                made[id(value)] = torch.empty(value.shape, dtype=kept)
            else:
                made[id(value)] = value.contiguous().to(kept)
    return {name: made[id(value)] for name, value in state_dict.items()}


def _dtype_of(dtype: Any) -> torch.dtype:
    found = DTYPE_NAMES.get(str(dtype).removeprefix("torch.").lower())
    if found is None:
        raise ValueError(
            f"Unsupported output dtype {dtype!r}. Choose one of: {', '.join(DTYPE_NAMES)}"
        )
    return found


def convert_zero_checkpoint_to_state_dict(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
    checkpoint_dir: str,
    output_dir: str,
    dtype: Any = torch.float32,
    max_shard_size: Any = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Writes the model in a dtype into `output_dir`, with an index where it needs several files."""
    save_model(
        checkpoint_dir,
        output_dir,
        tag=tag,
        dtype=_dtype_of(dtype),
        max_shard_size=max_shard_size,
        safe_serialization=safe_serialization,
        exclude_frozen=exclude_frozen_parameters,
    )


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str,
    output_dir: str,
    max_shard_size: Any = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """As convert_zero_checkpoint_to_state_dict, in fp32."""
    rest = max_shard_size, safe_serialization, tag, exclude_frozen_parameters
    convert_zero_checkpoint_to_state_dict(checkpoint_dir, output_dir, torch.float32, *rest)


def load_state_dict_from_zero_checkpoint(
    model: nn.Module, checkpoint_dir: str, tag: str | None = None
) -> nn.Module:
    """The model on the CPU with the checkpoint's values; not usable with its engine any more."""
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag)
    model = model.cpu()
    model.load_state_dict(state, strict=False)
    return model


# --- the scripts that DeepSpeed's users expect in a folder of checkpoints ---

_HEAD = """#!/usr/bin/env python3
# Writes the whole model of a checkpoint: {usage}
# --help lists the options.
import sys

from zerorun.consolidate import main

"""
# DeepSpeed's defaults, and an option of its scripts that has no effect here.
_RUN = """given = [argument for argument in sys.argv[1:] if argument not in {"-d", "--debug"}]
sys.exit(main(["--max_shard_size", "5GB", *given]))
"""
_SCRIPTS = {
    "zero_to_fp32.py": _HEAD.format(usage="zero_to_fp32.py CHECKPOINT OUTPUT") + _RUN,
    "zero_to_torch.py": _HEAD.format(usage="zero_to_torch.py CHECKPOINT OUTPUT --dtype bf16")
    + _RUN,
}


def write_scripts(folder: str | os.PathLike[str]) -> None:
    for name, text in _SCRIPTS.items():
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        try:
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        except OSError as error:  # file shares without modes; `python SCRIPT` runs it all the same
            logger.info("%s is not executable: %s", path, error)
