"""python -m zerorun ARGUMENTS: the command zerorun of this installation."""

import importlib
import os
import shutil
import sys
import sysconfig
from pathlib import Path


def _command() -> str:
    """The program that was built with this package: beside Python's, or in the build folder."""
    package = Path(__file__).parent  # in a build folder, where its files are links to the sources
    for folder in (Path(sysconfig.get_path("scripts")), package.parent.parent / "bin"):
        if (folder / "zerorun").is_file():
            return str(folder / "zerorun")
    found = shutil.which("zerorun")
    if found is None:
        sys.exit("zerorun: error: the command zerorun is not installed beside this package")
    return found


def main() -> None:
    if sys.argv[1:3] in (["ckpt", "import"], ["ckpt", "export"]):  # which need PyTorch
        conversion = importlib.import_module("zerorun.conversion")
        sys.exit(conversion.main(sys.argv[2:]))
    program = _command()
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
