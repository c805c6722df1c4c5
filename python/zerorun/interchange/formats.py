"""Which program's checkpoint a folder is."""

import contextlib
import os
from collections.abc import Callable, Iterator

from zerorun import _C
from zerorun.interchange import hugging_face, untrusted
from zerorun.interchange.deepspeed_model import is_universal, open_universal
from zerorun.interchange.deepspeed_zero import is_zero_checkpoint, open_zero
from zerorun.interchange.distributed import is_distributed, open_distributed
from zerorun.interchange.source import Source

_LATEST = ("latest", "latest_universal")  # the second is DeepSpeed's for its universal format
_MANIFEST = "checkpoint.json"  # zerorun's own
_OF_CONTENT = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError),
    *(RuntimeError, TypeError, ValueError),
)


def find(directory: str, tag: str | None) -> str | None:
    """The folder of another program's checkpoint in `directory`; None: it is zerorun's, or there
    is none. Raises CheckpointError for what cannot be read.

    It is `directory`/`tag`, without a tag what `latest` names, or `directory` itself where there
    is neither such a file nor a checkpoint below it: `train` leaves a model beside checkpoints.
    """
    with told(directory):
        latest = (os.path.join(directory, name) for name in _LATEST)
        names = [tag] if tag else [untrusted.read_tag(p) for p in latest if untrusted.is_there(p)]
        for name in names:
            folder = os.path.join(directory, untrusted.one_name(name, "tag"))
            if untrusted.is_there(os.path.join(folder, _MANIFEST)):
                return None
            if _opener(folder) is not None:
                return folder
        if names or _opener(directory) is None:
            return None
        below = os.listdir(directory)
        if any(untrusted.is_there(os.path.join(directory, name, _MANIFEST)) for name in below):
            return None
        return directory


def _opener(folder: str) -> Callable[..., Source] | None:
    for recognises, opener in (
        (is_universal, open_universal),
        (is_zero_checkpoint, open_zero),
        (is_distributed, open_distributed),
        (hugging_face.is_hugging_face, hugging_face.open_hugging_face),
        (hugging_face.is_sharded_safetensors, hugging_face.open_sharded_safetensors),
    ):
        if recognises(folder):
            return opener
    return None


def open_source(folder: str, *, optimizer_states: bool = True) -> Source:
    """Describes the checkpoint in a folder that find() has found. Raises CheckpointError."""
    opener = _opener(folder)
    if opener is None:
        raise _C.CheckpointError(
            f"{folder}: expected a folder of DeepSpeed (*_optim_states.pt, or zero/), Hugging Face "
            "(model.safetensors, pytorch_model.bin or their index, shard-*.safetensors) or "
            "torch.distributed.checkpoint (.metadata)"
        )
    with told(folder):
        return opener(folder, optimizer_states=optimizer_states).with_plain_names()


@contextlib.contextmanager
def told(folder: str) -> Iterator[None]:
    """A block that reads a checkpoint: whatever its content makes fail is a CheckpointError."""
    try:
        yield
    except _C.Error:
        raise
    except OSError as error:
        raise _C.CheckpointError(f"{folder}: {error}") from error
    except _OF_CONTENT as error:
        kind = type(error).__name__
        raise _C.CheckpointError(f"{folder}: not what its names say: {kind}: {error}") from error
