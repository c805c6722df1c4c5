"""Programs of other projects train under zerorun as under DeepSpeed, from the same seed.

make_golden.py has written what DeepSpeed itself computes.
"""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import launch, passed
from runs import HERE, PACKAGES, RANKS, RUNS, golden

BUILD = HERE.parents[1] / "build" / "release"
ALL = [(program, name) for program, runs in RUNS.items() for name in runs]


# What one rounding in fp32 changes in figures that are differences of larger numbers. TRL's KL
# divergence is the mean of exp(d) - d - 1, which subtracts numbers near 1.
ROUNDING = {"kl": 2.0**-24}


def worst_difference(name: str, found: list[float], expected: list[float]) -> float:
    """Relative to the largest of a series, since rewards and KL divergences pass through zero, and
    without what a rounding explains."""
    assert len(found) == len(expected)
    scale = max(map(abs, expected))
    worst = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    return max(0.0, worst - ROUNDING.get(name, 0.0)) / scale


def figures_of(program: str, run: str, folder: Path, ranks: int = RANKS) -> dict[str, Any]:
    file = folder / "figures.json"
    script = [HERE / "program.py", program, run, "--figures", file]
    variables = {"TOKENIZERS_PARALLELISM": "false", "TMPDIR": str(folder)}
    passed(launch(BUILD, ranks, "--deepspeed_compat", *script, cwd=folder, **variables))
    return json.loads(file.read_text())


@pytest.mark.parametrize(("program", "name"), ALL, ids=[f"{p}-{n}" for p, n in ALL])
def test_follows_deepspeed(
    tmp_path: Path, record_property: Callable[[str, object], None], program: str, name: str
) -> None:
    missing = [name for name in PACKAGES[program] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    expected = golden(program).get(name)
    if expected is None:
        pytest.skip(f"no figures of DeepSpeed's yet: make_golden.py {program} records them")
    found = figures_of(program, name, tmp_path)
    assert found.keys() == expected.keys()
    differences = {key: worst_difference(key, found[key], expected[key]) for key in expected}
    record_property("largest_difference", max(differences.values()))  # for docs/ecosystem.md
    tolerance = 1e-2 if "bf16" in name else 1e-5
    assert max(differences.values()) <= tolerance, (differences, found, expected)


@pytest.mark.parametrize(
    ("package", "program"), [("peft", "peft_kinds"), ("transformers", "distributed_config")]
)
def test_others_follow_pytorch(
    tmp_path: Path, record_property: Callable[[str, object], None], package: str, program: str
) -> None:
    """Their figures are differences; what has to be the same, they compare themselves."""
    pytest.importorskip(package)
    found = figures_of(program, "stage3", tmp_path)
    record_property("largest_differences", json.dumps(found))  # for docs/ecosystem.md
    assert found
    # bf16 rounds a batch otherwise on two ranks; the largest difference was 6e-6.
    assert {run: found[run] for run in found if not max(found[run]) <= 1e-4} == {}
