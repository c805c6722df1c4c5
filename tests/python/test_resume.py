"""A run that stops after any step and resumes sees the samples of one that does not stop."""

import json
from collections import Counter
from pathlib import Path

import pytest
from ranks import HERE, launch

PROGRAM = HERE / "resumed_loop.py"


def runs(
    build: Path, ranks: int, how: str, data: str, folder: Path, accumulation: int, *resume: str
):
    options = ["--deepspeed_compat"] if how == "deepspeed" else []
    arguments = [PROGRAM, how, data, folder, str(accumulation), *resume]
    job = launch(build, ranks, *options, *arguments)
    assert job.returncode == 0, job.stdout + job.stderr
    return json.loads((folder / ("resumed.json" if resume else "whole.json")).read_text())


@pytest.mark.parametrize(
    ("how", "data"),
    [("initialize", "listed"), ("shard", "streamed"), ("deepspeed", "listed")],
)
def test_the_same_samples_and_bits(build: Path, tmp_path: Path, how: str, data: str) -> None:
    whole = runs(build, 2, how, data, tmp_path, 2)["0"]
    resumed = runs(build, 2, how, data, tmp_path, 2, "--resume")
    seen = [sum(column) for column in zip(*whole["steps"], strict=True)]
    assert min(seen) == 1
    assert sum(seen) == 2 * 22  # one sample fills each epoch up
    assert len(whole["steps"]) == 6  # of 12 micro-steps
    after_steps = [tag for tag in resumed if not tag.startswith("inside")]
    assert len(after_steps) == 6
    for tag in resumed if how != "deepspeed" else after_steps:
        begin = int(tag.removeprefix("inside"))
        assert resumed[tag]["own"] == whole["own"][begin:], tag
        assert resumed[tag]["steps"] == whole["steps"][begin:], tag
        assert resumed[tag]["weights"] == whole["weights"], tag


@pytest.mark.parametrize("data", ["listed", "streamed"])
def test_no_sample_is_lost_on_more_ranks(build: Path, tmp_path: Path, data: str) -> None:
    whole = runs(build, 1, "initialize", data, tmp_path, 2)["0"]
    resumed = runs(build, 2, "initialize", data, tmp_path, 1, "--resume")
    for tag, found in resumed.items():
        begin = int(tag.removeprefix("inside"))
        steps = whole["steps"][:begin] + found["steps"]
        seen = [sum(column) for column in zip(*steps, strict=True)]
        assert min(seen) == 1, tag
        assert Counter(seen)[2] <= 2, tag  # which fill an epoch up
        assert max(seen) <= 2, tag
