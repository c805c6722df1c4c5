#!/usr/bin/env python3
"""The types of the C++ core, python/zerorun/_C.pyi, as its bindings tell them.

PYTHONPATH=build/release/python python scripts/core_stubs.py --write

Without --write it prints them. It needs pybind11-stubgen and ruff.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from zerorun import _C

ROOT = Path(__file__).resolve().parents[1]
STUBS = ROOT / "python" / "zerorun" / "_C.pyi"
HEAD = "# Written by scripts/core_stubs.py.\n"
# What bindings cannot tell: types of capsules and of what containers hold, a class that is bound
# after a function that takes it, and pointers that may be null.
REPLACED = {
    r"\b(list|dict|collections\.abc\.Callable) = ": r"\1[ANY] = ",
    r"\bcollections\.abc\.Callable(?=[,):])": "collections.abc.Callable[ANY]",
    r"\b(Gpu|Store) = None": r"\1 | None = None",
    r"dict\[ANY\]": "dict[str, typing.Any]",
    r"list\[ANY\]": "list[typing.Any]",
    r"Callable\[ANY\]": "Callable[..., typing.Any]",
    r"(typing_extensions|types)\.CapsuleType": "typing.Any",
    r"(def adapt_config\(config: )\.\.\.(.*-> )\.\.\.:": r"\1Config\2Config:",
    r"^from zerorun import (\w+)$": lambda found: error_class(found[1]),
    r"^import (typing_extensions|types)\n": "",
}


def error_class(name: str) -> str:
    """zerorun's __init__ has errors from the core, not the reverse."""
    bases = ", ".join(base.__name__ for base in getattr(_C, name).__bases__)
    return f"class {name}({bases}): ..."


def generated() -> str:
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-m", "pybind11_stubgen", "zerorun._C", "--output-dir", folder]
        subprocess.run(run, check=True, capture_output=True)
        text = HEAD + (Path(folder) / "zerorun" / "_C.pyi").read_text()
    for pattern, replacement in REPLACED.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    errors = sorted(re.findall(r"^class \w+Error\(.*\n", text, re.MULTILINE))
    for line in errors:  # behind the one that they derive from
        text = text.replace(line, "", 1)
    root = "class Error(RuntimeError): ...\n"
    text = text.replace(root, root + "".join(errors), 1)
    for command in (["check", "--fix", "--exit-zero"], ["format"]):
        arguments = ["ruff", *command, "--quiet", "--stdin-filename", str(STUBS), "-"]
        ruff = [sys.executable, "-m", *arguments]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        STUBS.write_text(generated())
    else:
        print(generated(), end="")


if __name__ == "__main__":
    main()
