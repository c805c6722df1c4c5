"""python -m zerorun.compat [-m MODULE | SCRIPT] ARGUMENTS: runs it with zerorun's deepspeed."""

import importlib.util
import os
import runpy
import sys

from zerorun.compat import install


def _is_runnable(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.submodule_search_locations is not None:  # a package
            spec = importlib.util.find_spec(f"{module}.__main__")
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return False  # a package on the way to it
        raise
    return spec is not None


def main() -> None:
    arguments = sys.argv[1:]
    usage = "usage: python -m zerorun.compat [-m MODULE | SCRIPT] ARGUMENTS"
    if arguments[:1] in (["-h"], ["--help"]):
        print(usage)
        return
    is_module = arguments[:1] == ["-m"]
    if len(arguments) < 1 + is_module:
        sys.exit(usage)
    if not is_module and not os.path.exists(arguments[0]):
        sys.exit(f"zerorun.compat: error: no script {arguments[0]}\n{usage}")
    install()
    if is_module:
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        if not _is_runnable(arguments[1]):
            sys.exit(f"zerorun.compat: error: no module {arguments[1]} that can be run\n{usage}")
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
