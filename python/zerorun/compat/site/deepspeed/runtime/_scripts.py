"""The scripts that DeepSpeed's users expect in a folder of checkpoints."""

import os
import stat

from deepspeed.utils.logging import logger

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
