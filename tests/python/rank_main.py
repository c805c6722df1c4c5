"""One rank of a job that runs a file of cases: rank_main.py NAME FOLDER."""

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
    module = importlib.import_module(f"cases.{name}")
    results = {}
    for case in cases_in(name):
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
