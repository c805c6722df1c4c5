"""Every public name of DeepSpeed, from the list of names in the stand-in."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import environment, ran

# Looks at every name; then asks those that it is given.
WALK = """
import importlib, json, sys, warnings
import zerorun.compat
zerorun.compat.install()
warnings.simplefilter("ignore")
import deepspeed
from deepspeed import _names
from deepspeed._finder import full
from deepspeed._placeholders import hint_of
from deepspeed._placeholders import is_placeholder

def problem_of(name, value, own_name):
    if not is_placeholder(value):
        return None
    try:
        value()
    except NotImplementedError as error:
        wanted = ("zerorun", name.rpartition(".")[2], hint_of(own_name))
        missing = [text for text in wanted if text not in str(error)]
        return missing and f"{name}: {missing} not in: {error}"
    return f"{name}: can be called"

walked, problems = 0, []
for module in _names.modules():
    loaded = importlib.import_module(full(module))
    assert loaded.__name__ == full(module)
    names = _names.names_of(module)
    assert hasattr(loaded, "__path__") == names.is_package, module
    for name in sorted(_names.all_names(module)):
        value, walked = getattr(loaded, name), walked + 1
        place = f"{full(module)}.{name}"
        if is_placeholder(value):  # which may have another name where it is defined
            place = f"{value.__module__}.{value.__name__}"
        problem = problem_of(place, value, place)
        if problem:
            problems.append(problem)
        for member in names.classes.get(name, []) if not is_placeholder(value) else []:
            place = f"{full(module)}.{name}.{member}"
            problem = problem_of(place, getattr(value, member), place)
            if problem:
                problems.append(problem)
told = {}
for name in sys.argv[1:]:
    module, _, last = name.rpartition(".")
    try:
        getattr(importlib.import_module(f"deepspeed.{module}"), last)()
    except NotImplementedError as error:
        told[name] = str(error)
print(json.dumps({"walked": walked, "problems": problems, "told": told}))
"""

# What the message about a name has to tell, by the name.
TOLD = {
    "launcher.multinode_runner.SlurmRunner": "--hostfile FILE --launcher NAME",
    "launcher.launch.main": "starts the ranks of a job",
    "runtime.data_pipeline.data_routing.helper.convert_to_random_ltd": "drop tokens in the model's",
    "runtime.zero.offload_states.get_state_devices": "engine.offload_states()",
    "runtime.zero.offload_states.reload_adam_states": "engine.reload_states()",
    "sequence.cross_entropy.vocab_sequence_parallel_cross_entropy": "TiledFusedLogitsLoss",
    "utils.comms_logging.calc_bw_log": "deepspeed.comm.log_summary()",
}


@pytest.fixture(scope="module")
def program(build: Path) -> dict[str, str]:
    """The environment of a program that finds the stand-in and no launcher's variables."""
    return environment(build, ZERORUN_COMPAT="")


@pytest.fixture(scope="module")
def found(program: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-c", WALK, *TOLD]
    result = ran(command, env=program)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_every_name_works_or_says_what_does(found: dict[str, Any]) -> None:
    assert found["problems"] == []
    assert found["walked"] > 3000


def test_the_message_names_what_does_the_same(found: dict[str, Any]) -> None:
    told = found["told"]
    assert {name: text for name, text in TOLD.items() if text not in told[name]} == {}


def test_the_page_is_what_the_stand_in_has(root: Path, program: dict[str, str]) -> None:
    script = root / "scripts" / "deepspeed_page.py"
    page = subprocess.run(
        [sys.executable, script], env=program, capture_output=True, text=True, check=True
    )
    assert page.stdout == (root / "docs" / "deepspeed_names.md").read_text(), (
        f"PYTHONPATH=build/release/python {os.fspath(script)} > docs/deepspeed_names.md"
    )


def test_names_are_found_without_importing_anything(root: Path, tmp_path: Path) -> None:
    """Of a package that cannot be imported."""
    package = tmp_path / "deepspeed"
    (package / "part").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import no_such_library\n"
        "from .part.inner import Thing, helper as renamed\n"
        "from . import part\n"
        "from .part.inner import *\n"
        "from os import path\n"
    )
    (package / "part" / "__init__.py").write_text("")
    (package / "part" / "_private.py").write_text("def hidden(): pass\n")
    (package / "part" / "inner.py").write_text(
        "LIMIT = 3\n"
        "WORDS = 'a sentence is not a fact'\n"
        "try:\n    import torch\n    FOUND = True\nexcept ImportError:\n    FOUND = False\n"
        "class Thing:\n    def method(self): pass\n"
        "class RepeatingLoader(Thing):\n    size = 1\n"
        "def helper(): pass\n"
        "def _internal(): pass\n"
        "first, second = object(), object()\n"
    )
    script = root / "scripts" / "deepspeed_names.py"
    result = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == [
        "deepspeed/",
        " from part part=",
        " from part.inner * Thing renamed=helper",
        "part/",
        "part.inner",
        " class Thing",
        " class RepeatingLoader: method size",
        " def helper",
        " value WORDS first second",
        " FOUND = True",
        " LIMIT = 3",
    ]
