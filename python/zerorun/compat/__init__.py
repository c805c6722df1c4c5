"""Running scripts that import DeepSpeed on zerorun, unedited.

Three ways, all of which also reach the processes that the script starts:

- ``zerorun script.py`` when DeepSpeed is not installed, ``zerorun --deepspeed_compat script.py``;
- ``python -m zerorun.compat script.py`` (or ``-m module``);
- ``ZERORUN_COMPAT=deepspeed`` in the environment, through the file zerorun_compat.pth of the wheel.

``ZERORUN_COMPAT=0`` turns all of them off.
"""

import sys
from pathlib import Path

from zerorun import environment

_HERE = Path(__file__).resolve().parent
SITE = _HERE / "site"  # holds the package deepspeed and its metadata
BIN = _HERE / "bin"
_TOO_LATE = ("deepspeed", "accelerate.utils", "transformers.integrations.deepspeed")


def install() -> None:
    """Puts zerorun's `deepspeed` first, for this process and those it starts.

    Raises RuntimeError when something has been imported that has already decided whether DeepSpeed
    is there.
    """
    if environment.compat() == "0" or str(SITE) in sys.path:
        return
    late = [name for name in _TOO_LATE if name in sys.modules]
    if late:
        raise RuntimeError(
            f"zerorun.compat.install() comes after the import of {', '.join(late)}, which has "
            "looked for DeepSpeed already: call it first"
        )
    sys.path.insert(0, str(SITE))
    environment.prepend("PYTHONPATH", str(SITE))
    environment.prepend("PATH", str(BIN))
