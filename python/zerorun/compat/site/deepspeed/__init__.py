"""The names of DeepSpeed 0.19, served by zerorun.

This package comes first on the path when zerorun's compatibility is active, and only then. What
zerorun does not have imports as a placeholder and raises NotImplementedError when it is used.
Importing it loads neither PyTorch nor the core.
"""

import importlib
import os
from typing import Any

from deepspeed import _finder

__version__ = "0.19.8+zerorun"
__version_major__, __version_minor__, __version_patch__ = 0, 19, 8
version = __version__
git_hash = git_branch = __git_hash__ = __git_branch__ = None

# The names that DeepSpeed defines in the package itself; the rest is in _names.txt.
_OWN = {"add_config_arguments": "deepspeed.launcher.runner", "initialize": "deepspeed._initialize"}
_other = _finder.fallback(__name__)


def __getattr__(name: str) -> Any:
    if name not in _OWN:
        return _other(name)
    value = globals()[name] = getattr(importlib.import_module(_OWN[name]), name)
    return value


if "LOCAL_WORLD_SIZE" in os.environ:  # DeepSpeed's launcher has this name for it
    os.environ.setdefault("LOCAL_SIZE", os.environ["LOCAL_WORLD_SIZE"])
_finder.install()
