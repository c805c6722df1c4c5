"""One rank of a job that runs cases of a file, or all: rank_main.py NAME FOLDER CASE..."""

import importlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path

from ranks import cases_in

# What PyTorch 2.4 says of its own functions.
OF_TORCH_2_4 = ("TypedStorage is deprecated", "`torch.cpu.amp.autocast")


def run(name: str, folder: Path, cases: list[str]) -> None:
    warnings.simplefilter("error")
    for text in OF_TORCH_2_4:
        warnings.filterwarnings("ignore", text)
    module = importlib.import_module(f"cases.{name}")
    end_engines = importlib.import_module("cases.models").end_engines
    results = {}
    for case in cases or cases_in(name):
        try:
            function = getattr(module, case)
            own = [folder / case][: function.__code__.co_argcount]
            for each in own:
                each.mkdir(parents=True, exist_ok=True)
            function(*own)
            end_engines()
            results[case] = "passed"
        except BaseException:
            # The other ranks fail too, or wait: nothing after this would tell anything.
            results[case] = traceback.format_exc()
            break
        finally:
            (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
