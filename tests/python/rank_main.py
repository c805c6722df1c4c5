"""One rank of a job that runs cases of a file: rank_main.py NAME FOLDER [CASE...]."""

import importlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path

from ranks import cases_in


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    warnings.simplefilter("error")
    if "FAKE_TORCH_CUDA" in os.environ:
        importlib.import_module("fake_torch_cuda").installed()
    module = importlib.import_module(f"cases.{name}")
    results = {}
    for case in sys.argv[3:] or cases_in(name):
        try:
            getattr(module, case)(folder / case)
            results[case] = "passed"
        except BaseException:
            # The other ranks fail too, or wait: nothing after this would tell anything.
            results[case] = traceback.format_exc()
            break
        finally:
            (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
