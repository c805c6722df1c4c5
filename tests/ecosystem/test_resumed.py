"""Runs of Trainer and accelerate that stop after any step and resume, on two ranks."""

from pathlib import Path

import pytest
from test_ecosystem import figures_of

# Runs, then after which of the six steps one that resumes there sees other samples, and ends with
# other weights. Those are faults of these versions of transformers and accelerate, which plain ones
# (PyTorch's DDP in place of zerorun) have, too: docs/ecosystem.md.
SWEEPS: list[tuple[str, set[int], set[int]]] = [
    ("trainer-stage2", set(), set()),
    ("trainer-stage2-uneven", set(), set()),
    ("accelerate-stage2-seedable-uneven-still", set(), set()),
    ("accelerate-stage2-stream-still", set(), set()),
]
for plain in ("", "-plain"):
    SWEEPS += [
        (f"trainer-stage2-stream{plain}", {4, 5, 6}, {4, 5, 6}),
        (f"accelerate-stage2-seedable{plain}", set(), {1, 2, 3, 4, 5}),
        (f"accelerate-stage2-still{plain}", {4, 5}, {4, 5}),
    ]


@pytest.mark.parametrize(("name", "other_samples", "other_bits"), SWEEPS)
def test_after_every_step(
    tmp_path: Path, name: str, other_samples: set[int], other_bits: set[int]
) -> None:
    found = figures_of("resumed", name, tmp_path)
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
    whole = figures_of("resumed", "trainer-stage2-still-first", tmp_path, 1)["whole"]
    found = figures_of("resumed", "trainer-stage2-still-rest", tmp_path)
    for step, each in found.items():
        first, second = each["seen"]
        seen = [sorted(first[at : at + 2] + second[at : at + 2]) for at in range(0, len(first), 2)]
        for ids in seen[:-1]:
            assert len(ids) == 4, step
        used = set(whole["seen"][0][: 4 * int(step)]) if int(step) < 6 else set(range(21))
        assert used | set(first) | set(second) == set(range(21)), step
