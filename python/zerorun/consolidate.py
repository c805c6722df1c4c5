"""Writes the full model of a sharded checkpoint; needs no GPU, no job and no model.

    python -m zerorun.consolidate CHECKPOINT OUTPUT [--tag TAG] [--safe_serialization]

CHECKPOINT is zerorun's, DeepSpeed's, or a folder of torch.distributed.checkpoint. Floating-point
parameters are written in fp32 unless --dtype is given, from the master parameters if training had
them. No code from the checkpoint is run.
"""

import os

import torch

from zerorun import _C
from zerorun.checkpoints.model_parts import check_whole
from zerorun.command_line import Parser, ProgressBar, exit_with, tell_error
from zerorun.interchange import formats, model_files
from zerorun.interchange.source import Source, open_own
from zerorun.model.model_layout import DTYPES

__all__ = ["fp32_state_dict", "lazy_state_dict", "main", "open_model", "save_model"]

DTYPE_NAMES = DTYPES | {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}


def open_model(directory: str | os.PathLike[str], tag: str | None = None) -> Source:
    """Opens the model in a checkpoint of zerorun or of another program. Raises CheckpointError."""
    folder = formats.find(os.fspath(directory), tag)
    if folder is None:
        check_whole(directory, tag)
        return open_own(directory, tag)
    source = formats.open_source(folder, optimizer_states=False)
    source.check_files()
    return source


def lazy_state_dict(
    directory: str | os.PathLike[str], tag: str | None = None, *, exclude_frozen: bool = False
) -> dict[str, model_files.ModelTensor]:
    """As fp32_state_dict, with tensors that are read when ``contiguous()`` is called."""
    return model_files.model_tensors(open_model(directory, tag), exclude_frozen=exclude_frozen)


def fp32_state_dict(
    directory: str | os.PathLike[str], tag: str | None = None, *, exclude_frozen: bool = False
) -> dict[str, torch.Tensor]:
    """Returns the parameters and buffers in fp32, under the names of the saved model.

    `directory`: a folder of checkpoints or one checkpoint. `tag`: default: the latest.
    `exclude_frozen`: leave out frozen parameters. Tied parameters share one tensor. Raises
    CheckpointError for missing or damaged files.
    """
    lazy = lazy_state_dict(directory, tag, exclude_frozen=exclude_frozen)
    read = {value.name: value.contiguous() for value in lazy.values()}
    return {name: read[value.name] for name, value in lazy.items()}


def save_model(  # noqa: PLR0913 - options of the command
    directory: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    tag: str | None = None,
    dtype: torch.dtype | None = torch.float32,
    max_shard_size: str | int | None = None,
    safe_serialization: bool = False,
    exclude_frozen: bool = False,
    progress: model_files.Progress = lambda _done, _total: None,
) -> list[str]:
    """Writes the model to the folder `output` with Hugging Face's file names; returns the files.

    `dtype`: of floating-point tensors; None: as stored. `max_shard_size`: of a file, in bytes or
    as text ("5GB"); several files have an index. With `safe_serialization` safetensors files are
    written, with one parameter in memory; else torch.save's, with one file in memory.
    `progress(done, total)` is called with bytes. Raises CheckpointError, ConfigError.
    """
    limit = None if max_shard_size is None else model_files.nbytes_of(max_shard_size)
    source = open_model(directory, tag)
    tensors = model_files.model_tensors(source, dtype, exclude_frozen=exclude_frozen)
    return model_files.write_model(
        tensors, output, max_nbytes=limit, safetensors=safe_serialization, progress=progress
    )


def main(arguments: list[str] | None = None) -> int:
    """The command line; errors are one line on standard error."""
    parser = Parser(prog="zerorun.consolidate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkpoint", help="folder that save_checkpoint wrote, or one tag of it")
    parser.add_argument("output", help="folder for the model")
    parser.add_argument("-t", "--tag", help="default: what was saved last")
    parser.add_argument("--dtype", choices=[*DTYPE_NAMES], default="fp32", help="default: fp32")
    parser.add_argument("--max_shard_size", help='of a file, as "5GB"; default: one file')
    parser.add_argument("--safe_serialization", action="store_true", help="safetensors, not pickle")
    parser.add_argument("--exclude_frozen_parameters", action="store_true")
    options = parser.parse_args(arguments)
    try:
        with ProgressBar("writing") as bar:
            files = save_model(
                options.checkpoint,
                options.output,
                tag=options.tag,
                dtype=DTYPE_NAMES[options.dtype],
                max_shard_size=options.max_shard_size,
                safe_serialization=options.safe_serialization,
                exclude_frozen=options.exclude_frozen_parameters,
                progress=bar.show,
            )
    except (_C.Error, OSError) as error:
        return tell_error("zerorun.consolidate", error)
    print(_C.printable("\n".join(files)))
    return 0


if __name__ == "__main__":
    exit_with(main)
