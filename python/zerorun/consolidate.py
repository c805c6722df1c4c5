"""One file, or a state dict, out of a sharded checkpoint; needs no GPU, no job and no model.

    python -m zerorun.consolidate CHECKPOINT OUTPUT [--tag TAG] [--safe_serialization]

Floating-point parameters come out in fp32, from the masters where training kept them. Nothing in
the checkpoint is unpickled as code: the client_state is not read.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from types import ModuleType

import torch

from zerorun import _C, program_state
from zerorun.model_layout import DTYPES

__all__ = ["fp32_state_dict", "main", "save_fp32_model"]


def fp32_state_dict(
    directory: str | os.PathLike[str], tag: str | None = None, *, exclude_frozen: bool = False
) -> dict[str, torch.Tensor]:
    """The parameters in fp32, and the buffers, under the names of the model that was saved.

    Tied parameters share one tensor. Raises CheckpointError for what is missing or damaged.
    """
    saved = _C.SavedModel(os.fspath(directory), tag or "")
    state: dict[str, torch.Tensor] = {}
    for index, parameter in enumerate(saved.parameters):
        if parameter.alias_of or not parameter.saved:
            continue
        if exclude_frozen and not parameter.trainable:
            continue
        flat = torch.empty(torch.Size(parameter.shape).numel(), dtype=DTYPES[parameter.dtype])
        saved.read(index, flat)
        state[parameter.name] = flat.float().view(parameter.shape)
    for parameter in saved.parameters:
        if parameter.alias_of in state:
            state[parameter.name] = state[parameter.alias_of]
    return state | program_state.decode(saved.client_state).get("buffers", {})


def save_fp32_model(
    directory: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    tag: str | None = None,
    max_shard_size: str | int | None = None,
    safe_serialization: bool = False,
    exclude_frozen: bool = False,
) -> list[str]:
    """Writes fp32_state_dict into the folder `output` as Hugging Face names it; returns the files.

    `max_shard_size`: bytes, or text as "5GB", of a file; several files come with an index. Raises
    ConfigError when the package that an option needs is not installed.
    """
    # Before the model is read, which takes long.
    writer = _import("safetensors.torch", "safe_serialization") if safe_serialization else None
    splitter = None if max_shard_size is None else _import("huggingface_hub", "max_shard_size")
    state = fp32_state_dict(directory, tag, exclude_frozen=exclude_frozen)
    os.makedirs(output, exist_ok=True)
    pattern = "model{suffix}.safetensors" if safe_serialization else "pytorch_model{suffix}.bin"
    parts, index = _split(state, pattern, max_shard_size, splitter)
    files = []
    for name, keys in parts.items():
        path = os.path.join(output, name)
        part = {key: state[key] for key in keys}
        if writer is not None:
            # The format has no shared tensors: a tied parameter is stored under its first name.
            writer.save_file(_without_aliases(part), path, metadata={"format": "pt"})
        else:
            torch.save(part, path)
        files.append(path)
    if index is not None:
        path = os.path.join(output, pattern.format(suffix="") + ".index.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(index, file, indent=2, sort_keys=True)
            file.write("\n")
        files.append(path)
    return files


def _import(module: str, option: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise _C.ConfigError(
            f"{option} needs the package {package} ({error}): install it with pip, or leave the "
            "option out"
        ) from None


def _split(
    state: dict[str, torch.Tensor],
    pattern: str,
    max_shard_size: str | int | None,
    splitter: ModuleType | None,
) -> tuple[dict[str, list[str]], dict[str, object] | None]:
    """The keys of each file, and the index that several files need."""
    if splitter is None:
        return {pattern.format(suffix=""): list(state)}, None
    split = splitter.split_torch_state_dict_into_shards(
        state, filename_pattern=pattern, max_shard_size=max_shard_size
    )
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
    return split.filename_to_tensors, index if split.is_sharded else None


def _without_aliases(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    kept: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, value in state.items():
        if value.numel() == 0 or value.data_ptr() not in seen:
            kept[name] = value
        seen.add(value.data_ptr())
    return kept


def main(arguments: list[str] | None = None) -> int:
    """The command line; errors are one line on standard error."""
    parser = argparse.ArgumentParser(
        prog="zerorun.consolidate", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("checkpoint", help="folder that save_checkpoint wrote, or one tag of it")
    parser.add_argument("output", help="folder for the model")
    parser.add_argument("-t", "--tag", help="default: what was saved last")
    parser.add_argument("--max_shard_size", help='of a file, as "5GB"; default: one file')
    parser.add_argument("--safe_serialization", action="store_true", help="safetensors, not pickle")
    parser.add_argument("--exclude_frozen_parameters", action="store_true")
    options = parser.parse_args(arguments)
    try:
        files = save_fp32_model(
            options.checkpoint,
            options.output,
            tag=options.tag,
            max_shard_size=options.max_shard_size,
            safe_serialization=options.safe_serialization,
            exclude_frozen=options.exclude_frozen_parameters,
        )
    except (_C.Error, OSError) as error:
        print(f"zerorun.consolidate: error: {error}", file=sys.stderr)
        return 1
    print("\n".join(files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
