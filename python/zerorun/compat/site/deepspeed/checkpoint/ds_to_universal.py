"""The step between a save and a load on another number of ranks, which needs no conversion.

Any stage and number of ranks loads a checkpoint of zerorun's, and one of DeepSpeed's, as it is. So
the output is the input under another name: hard links, or copies where the disk has no links.
"""

import argparse
import os
import shutil
from collections.abc import Sequence
from typing import Any

import zerorun
from zerorun import program_state
from zerorun.checkpoints.model_parts import parts_in
from zerorun.checkpoints.shard_files import check_record
from zerorun.interchange.deepspeed_zero import is_zero_checkpoint

_MANIFEST = "checkpoint.json"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """DeepSpeed's options, of which only the folders have an effect."""
    parser = argparse.ArgumentParser(prog="ds_to_universal", description=__doc__)
    parser.add_argument("--input_folder", required=True, help="the folder of one tag")
    parser.add_argument("--output_folder", required=True, help="the folder of the new tag")
    for name in ("--num_extract_workers", "--num_merge_workers"):
        parser.add_argument(name, type=int, help="no effect: nothing is converted")
    for name in ("--keep_temp_folder", "--inject_missing_state"):
        parser.add_argument(name, action="store_true", help="no effect")
    parser.add_argument("--no_strict", dest="strict", action="store_false", help="no effect")
    return parser.parse_args(arguments)


def main(args: Any = None) -> None:
    """Gives the checkpoint `args.input_folder` also the name `args.output_folder`.

    What is there of an earlier call is replaced. Raises CheckpointError for an input that is no
    checkpoint, and for an output that is something else.
    """
    args = parse_arguments() if args is None else args
    source, target = (os.path.abspath(path) for path in (args.input_folder, args.output_folder))
    is_own = _is_own(source)
    if not _is_checkpoint(source):
        raise zerorun.CheckpointError(
            f"{source}: no checkpoint; expected the folder of one tag, as save_checkpoint writes it"
        )
    if os.path.exists(target) and os.listdir(target) and not _is_checkpoint(target):
        raise zerorun.CheckpointError(f"{target}: is there, and is no checkpoint: name another one")
    # DeepSpeed writes its files in place, which would reach a link to them.
    copy = _link if is_own else shutil.copy2
    _replace(source, target, copy)
    if is_own and os.path.dirname(source) != os.path.dirname(target):
        for folder in _beside(source):
            _replace(folder, os.path.join(os.path.dirname(target), os.path.basename(folder)), copy)
    _name_latest(target)
    print(f"ds_to_universal: {target} is {source}, which loads on any number of ranks as it is")


def _is_own(folder: str) -> bool:
    """True for a checkpoint of zerorun's, also of a model in parts."""
    return os.path.isfile(os.path.join(folder, _MANIFEST)) or bool(parts_in(folder))


def _is_checkpoint(folder: str) -> bool:
    return _is_own(folder) or is_zero_checkpoint(folder)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _replace(source: str, target: str, copy: Any) -> None:
    """`target` becomes a copy of the folder `source`, whole or not at all."""
    made = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.tmp-{os.getpid()}")
    try:
        shutil.copytree(source, made, copy_function=copy)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(made, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _beside(source: str) -> list[str]:
    """The folder with the states of a torch optimizer, which lies beside the tags."""
    if not os.path.isfile(os.path.join(source, _MANIFEST)):
        return []
    saved = zerorun._C.SavedModel(source, "")
    record = program_state.decode(saved.client_state).get("shard_files")
    if not record:
        return []
    check_record(record, source)
    return [os.path.join(os.path.dirname(source), record["folder"])]


def _name_latest(target: str) -> None:
    """What DeepSpeed's scripts look for; also ``latest``, where no save has written it."""
    parent, name = os.path.split(target)
    for latest in ("latest_universal", "latest"):
        path = os.path.join(parent, latest)
        if latest == "latest" and os.path.exists(path):
            continue
        with open(path, "w", encoding="utf-8") as file:
            file.write(name)


if __name__ == "__main__":
    main()
