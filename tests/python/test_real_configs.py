"""Configurations of real trainers: what data/real_configs.json says of each is what happens.

The file holds the settings of their templates, with the batch sizes that the program would give
where a template has none. `refused`: the keys that zerorun does not take. `ignored`: keys at the
top level that DeepSpeed does not know and ignores, as does zerorun's stand-in for it; zerorun
itself refuses them by name.
"""

import json
import re
import sys
from pathlib import Path

import pytest
import zerorun
from ranks import passed, ran
from zerorun import config

DATA = Path(__file__).parent / "data" / "real_configs.json"
CASES = json.loads(DATA.read_text())


def refused(settings: dict) -> set[str]:
    """The pointers in the error about the settings."""
    try:
        config.parse(settings)
    except zerorun.ConfigError as error:
        return set(re.findall(r"^ +\d+\. (\S+) \(", str(error), re.MULTILINE))
    return set()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['project']}: {case['file']}")
def test_a_configuration_is_taken_but_for_what_is_listed(case: dict) -> None:
    unknown = {f"/{key}" for key in case.get("ignored", [])}
    wrong = set(case.get("refused", []))
    assert refused(case["config"]) == unknown | wrong
    if not wrong:
        known = {k: v for k, v in case["config"].items() if f"/{k}" not in unknown}
        assert config.parse(known).config.zero.stage == case["stage"]


def test_the_stand_in_ignores_unknown_keys_at_the_top_level(build: Path) -> None:
    """In a process of its own, since DeepSpeed may be installed."""
    names = [case["file"] for case in CASES if case.get("ignored") and not case.get("refused")]
    assert len(names) >= 3
    program = f"""
import json, zerorun.compat
zerorun.compat.install()
from deepspeed.runtime.config import adapt_config
from zerorun import config
for case in json.load(open({str(DATA)!r})):
    if case["file"] in {names!r}:
        print(config.parse(adapt_config(case["config"])).config.zero.stage == case["stage"])
"""
    job = passed(ran([sys.executable, "-c", program], env={"PYTHONPATH": str(build / "python")}))
    assert job.stdout.split() == ["True"] * len(names)
    for case in CASES:
        if case["file"] in names:
            assert all(key in job.stderr for key in case["ignored"])
