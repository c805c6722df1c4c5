"""Every public name of DeepSpeed, from the list of names in the stand-in."""

import json
import sys
from pathlib import Path

import pytest
from ranks import environment, output_of

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

def problem_of(name, value):
    if not is_placeholder(value):
        return None
    try:
        value()
    except NotImplementedError as error:
        wanted = ("zerorun", name.rpartition(".")[2], hint_of(name))
        missing = [text for text in wanted if text not in str(error)]
        return missing and f"{name}: {missing} not in: {error}"
    return f"{name}: can be called"

walked, problems = 0, []
for module in _names.modules():
    loaded = importlib.import_module(full(module))
    names = _names.names_of(module)
    assert hasattr(loaded, "__path__") == names.is_package, module
    for name in sorted(_names.all_names(module)):
        value, walked = getattr(loaded, name), walked + 1
        place = f"{full(module)}.{name}"
        if is_placeholder(value):  # which may have another name where it is defined
            place = f"{value.__module__}.{value.__name__}"
        problems.append(problem_of(place, value))
        for member in names.classes.get(name, []) if not is_placeholder(value) else []:
            problems.append(problem_of(f"{place}.{member}", getattr(value, member)))
problems = list(filter(None, problems))
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
    "runtime.data_pipeline.data_routing.helper.convert_to_random_ltd": "drop tokens in the model's",
    "runtime.zero.offload_states.reload_adam_states": "engine.reload_states()",
}


@pytest.fixture
def program(build: Path) -> dict[str, str]:
    """The environment of a program that finds the stand-in and no launcher's variables."""
    return environment(build, ZERORUN_COMPAT="")


def test_every_name_works_or_says_what_does(program: dict[str, str]) -> None:
    found = json.loads(output_of(sys.executable, "-c", WALK, *TOLD, env=program).splitlines()[-1])
    assert found["problems"] == []
    assert found["walked"] > 3000
    told = found["told"]
    assert {name: text for name, text in TOLD.items() if text not in told[name]} == {}


def test_the_page_is_what_the_stand_in_has(root: Path, program: dict[str, str]) -> None:
    script = root / "scripts" / "deepspeed_page.py"
    page = output_of(sys.executable, script, env=program)
    assert page == (root / "docs" / "deepspeed_names.md").read_text(), (
        f"PYTHONPATH=build/release/python {script} > docs/deepspeed_names.md"
    )
