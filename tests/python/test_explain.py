"""Every error text has an entry on the page Troubles, and `zerorun explain` finds it."""

import random
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from ranks import passed, shell
from zerorun import explain

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import error_texts  # noqa: E402

ENTRIES = error_texts.entries(error_texts.ENTRIES.read_text())
MESSAGES = [line.split("\t") for line in error_texts.MESSAGES.read_text().splitlines()]


def test_the_page_has_every_text_of_the_sources() -> None:
    stale = [path for path, text in error_texts.outputs().items() if path.read_text() != text]
    assert stale == [], "run: python scripts/error_texts.py --write"
    assert len(MESSAGES) > 1000
    assert not [text for _, text in MESSAGES if "CPU rank{}" in text]  # a note


def test_entries_have_an_example_a_cause_and_a_remedy() -> None:
    anchors = [entry.anchor for entry in ENTRIES]
    assert len(set(anchors)) == len(anchors)
    for entry in ENTRIES:
        assert entry.body.count("**Cause.**") == entry.body.count("**Remedy.**") == 1, entry.anchor
        found = explain.explain("[rank 1] " + entry.body.splitlines()[0])
        assert found is not None
        assert found.anchor == entry.anchor
    assert {anchor for anchor, _ in MESSAGES} <= set(anchors)


def test_texts_with_values_are_explained_by_their_entry() -> None:
    chosen = random.Random(0).sample([m for m in MESSAGES if len(m[1].split()) > 4], 60)
    wrong = []
    for anchor, text in chosen:
        found = explain.explain("[zerorun] error: " + text.replace("{}", "out/x.7"))
        if found is None or found.anchor != anchor:
            wrong.append((text, anchor, found and found.anchor))
    assert len(wrong) <= 3, wrong


@pytest.mark.parametrize(
    ("text", "anchor"),
    [
        ("ValueError: could not convert string to float: 'abc'", None),
        ("torch.distributed.elastic.errors.ChildFailedError: train.py FAILED", None),
        ("AttributeError: 'Model' object has no attribute 'encode'", None),
        ("ModuleNotFoundError: No module named 'zerorun'", "program"),
        ("RuntimeError: mat1 and mat2 must have the same dtype, but got A and B", "parameters"),
        ("ValueError: Please correct the following DeepSpeed config values that", "contradiction"),
        ("--num_gpus 'two': expected a number from 1 to 1024, auto, gpu or cpu", "command-line"),
        ("--include 'localhost:7' names slot 7, but this host has 2 CPU slots (0 to 1)", "hosts"),
        ("zerorun ckpt show: nofolder: No such file or directory", "checkpoint-missing"),
        ("--data: cannot open nofolder: No such file or directory", "train-data"),
        ("RuntimeError: CUDA error: invalid device ordinal", "gpu-missing"),
        ("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB", "gpu-memory"),
        ("OSError: [Errno 98] Address already in use", "meeting"),
        ("nothing answers: the host is down, has another address, or a firewall", "meeting"),
        ("warning: rank 3 (host b) is waited for: 12 % of the time, spent loading", "straggler"),
        ("UserWarning: step() without a backward since the last one: nothing", "engine-calls"),
        ("RuntimeError: size mismatch, got input (32), mat (32x8), vec (0)", "empty-parameters"),
        ("The size of tensor a (16) must match the size of tensor b (0)", "empty-parameters"),
        ("The size of tensor a (16) must match the size of tensor b (8)", None),
        ("AssertionError: No inf checks were recorded for this optimizer.", "clipping"),
        ("me@b: Permission denied (publickey).", "hosts"),
        ("[zerorun] error: rank 1 failed: ranks diverged", "diverged"),
        ("zerorun._C.CommError: ranks diverged: rank 0 (pid 15018 on vm) calls", "diverged"),
        ('batch sizes: "auto", the program', "wrong-value"),
        ("offload_states: got device cuda,", "deepspeed-name"),
    ],
)
def test_a_text_gets_its_own_entry_or_none(text: str, anchor: str | None) -> None:
    found = explain.explain(text)
    assert (found.anchor if found else None) == anchor


def test_a_long_log_is_searched_at_once() -> None:
    line = "[rank 1] File (in a.py), line 3 of 7: x = f(y) (z), so it is: w; v\n"
    log = line * 2000 + "[zerorun] error: rank 1 ran into: CUDA out of memory"
    begin = time.process_time()
    assert not any(find(log, explain._messages()) for find in (explain._whole, explain._cut_off))
    assert time.process_time() - begin < 20  # with one regular expression per text it had no end


def test_the_command(build: Path, tmp_path: Path) -> None:
    job = passed(shell(build, "zerorun explain ranks diverged: rank 0 calls all_gather", tmp_path))
    assert re.search(r"\ARanks made .*\n.*\nCause\. .*\nRemedy\. ", job.stdout, re.DOTALL)
    assert job.stdout.endswith("docs/troubles.md#diverged\n")
    memory = "zerorun explain CUDA out of memory"
    job = shell(build, "zerorun explain banana", tmp_path)
    assert (job.returncode, job.stdout) == (1, "")
    assert "quote more of the error. If it is not zerorun's" in job.stderr
    ended = f"{{ sleep 0.2; {memory}; echo $? >&2; }} | true"
    assert shell(build, ended, tmp_path).stderr == f"{128 + signal.SIGPIPE}\n"
    job = shell(build, f"{memory} >/dev/full", tmp_path)
    told = "zerorun: error: cannot write to standard output: No space left on device\n"
    assert (job.returncode, job.stderr) == (1, told)
