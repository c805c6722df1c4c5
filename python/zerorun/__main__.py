"""python -m zerorun ARGUMENTS: the command zerorun of this installation.

The script ``zerorun`` that pip makes calls ``main`` as well.
"""

import importlib.util
import os
import sys
from pathlib import Path

from zerorun import _C, command_line, environment


def _command() -> str:
    """The program that was built with this package: in its folder, or in that of the build."""
    package = Path(_C.__file__).parent
    for folder in (package / "bin", package.parent.parent / "bin"):
        if (folder / "zerorun").is_file():
            return str(folder / "zerorun")
    sys.exit(
        f"zerorun: error: {package} has no bin/zerorun: install zerorun again, with its programs"
    )


def main() -> None:
    if sys.argv[1:3] in (["ckpt", "import"], ["ckpt", "export"]):
        if importlib.util.find_spec("torch") is None:
            sys.exit(
                f"zerorun ckpt {sys.argv[2]}: error: it needs PyTorch, which {sys.executable} does "
                "not have; activate the environment that has it"
            )
        conversion = importlib.import_module("zerorun.conversion")
        command_line.exit_with(conversion.main, sys.argv[2:])
    program = _command()
    environment.set_python(sys.executable)  # programs run in the environment of this package
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
