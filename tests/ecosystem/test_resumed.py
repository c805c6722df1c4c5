"""Runs of Trainer and accelerate that stop after any step and resume, on two ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import launch, passed
from runs import HERE, RANKS

BUILD = HERE.parents[1] / "build" / "release"
PROGRAM = HERE / "resumed.py"

# Options, then after which of the six steps a run that resumes there sees other samples, and ends
# with other weights. Those are faults of these versions of transformers and accelerate, which
# --plain (PyTorch's DDP in place of zerorun) has too: docs/ecosystem.md.
SWEEPS: list[tuple[str, set[int], set[int]]] = [
    ("trainer", set(), set()),
    ("trainer --samples 19", set(), set()),
    ("accelerate --seedable --samples 19 --dropout 0", set(), set()),
    ("accelerate --iterable --dropout 0", set(), set()),
]
for plain in ("", " --plain"):
    SWEEPS += [
        (f"trainer --iterable --max_steps 6{plain}", {4, 5, 6}, {4, 5, 6}),
        (f"accelerate --seedable{plain}", set(), {1, 2, 3, 4, 5}),
        (f"accelerate --dropout 0{plain}", {4, 5}, {4, 5}),
    ]


def run(folder: Path, ranks: int, *options: str) -> dict[str, Any]:
    script = [PROGRAM, *options, "--folder", folder]
    passed(launch(BUILD, ranks, "--deepspeed_compat", *script, cwd=folder))
    name = "resumed.json" if "--rest" in options else "whole.json"
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize(("options", "other_samples", "other_bits"), SWEEPS)
def test_after_every_step(
    tmp_path: Path, options: str, other_samples: set[int], other_bits: set[int]
) -> None:
    found = run(tmp_path, RANKS, *options.split())
    whole = found.pop("whole")
    assert whole["steps"] == len(found) == 6
    samples = {
        int(step)
        for step, each in found.items()
        for seen, own in zip(whole["seen"], each["seen"], strict=True)
        if seen[len(seen) - len(own) :] != own
    }
    assert samples == other_samples
    bits = {int(s) for s, each in found.items() if each["weights"] != whole["weights"]}
    assert bits == other_bits


def test_a_trainer_on_more_ranks(tmp_path: Path) -> None:
    """Twice the ranks and half of the accumulation: the same samples in every step."""
    options = ["trainer", "--dropout", "0"]
    whole = run(tmp_path, 1, *options, "--first")["whole"]
    found = run(tmp_path, 2, *options, "--accumulation", "1", "--rest", str(whole["steps"]))
    for step, each in found.items():
        first, second = each["seen"]
        seen = [sorted(first[at : at + 2] + second[at : at + 2]) for at in range(0, len(first), 2)]
        for ids in seen[:-1]:
            assert len(ids) == 4, step
        used = set(whole["seen"][0][: 4 * int(step)]) if int(step) < 6 else set(range(21))
        assert used | set(first) | set(second) == set(range(21)), step
