"""python -m zerorun.compat [-m MODULE | SCRIPT] ARGUMENTS: runs it with zerorun's deepspeed."""

import os
import runpy
import sys

from zerorun.compat import install


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or (arguments[0] == "-m" and len(arguments) < 2):
        sys.exit("usage: python -m zerorun.compat [-m MODULE | SCRIPT] ARGUMENTS")
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
