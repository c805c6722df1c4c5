"""A run that stops after any step and resumes sees the samples of one that does not stop."""

from prelude import *

PROGRAM = HERE / "resumed_loop.py"
KINDS = ("initialize/listed", "shard/streamed", "deepspeed/listed")
ELASTIC = ("initialize/listed", "shard/streamed")
SAMPLES = 21


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Folders) -> Path:
    """Of runs that resume on as many ranks, and on more: in same/ and elastic/."""
    folder = tmp_path_factory.mktemp("resumed")
    for ranks, place, *arguments in (
        (2, "same", "2", "both", *KINDS),
        (1, "elastic", "2", "whole", *ELASTIC),
        (2, "elastic", "1", "resumed", *ELASTIC),
    ):
        words = ["--deepspeed_compat", PROGRAM, folder / place, *arguments]
        passed(launch(ranks, *words, **torch_python()))
    return folder


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    whole, resumed = (json.loads((folder / f"{n}.json").read_text()) for n in ("whole", "resumed"))
    return whole["0"], resumed


@each("kind", *KINDS)
def test_the_same_samples_and_bits(folder: Path, kind: str) -> None:
    whole, resumed = read(folder / "same" / kind)
    seen = [sum(column) for column in zip(*whole["steps"], strict=True)]
    assert min(seen) == 1
    assert sum(seen) == 2 * (SAMPLES + 1)  # one sample fills each epoch up
    assert len(whole["steps"]) == 6  # of 12 micro-steps
    # Within a batch, a program of deepspeed's own knows what it has seen, not what was used.
    tags = [tag for tag in resumed if not (kind in KINDS[2:] and tag.startswith("inside"))]
    assert len(tags) >= 6
    for tag in tags:
        begin = int(tag.removeprefix("inside"))
        assert resumed[tag]["own"] == whole["own"][begin:], tag
        assert resumed[tag]["steps"] == whole["steps"][begin:], tag
        assert resumed[tag]["weights"] == whole["weights"], tag


@each("kind", *ELASTIC)
def test_no_sample_is_lost_on_more_ranks(folder: Path, kind: str) -> None:
    whole, resumed = read(folder / "elastic" / kind)
    assert len(resumed) >= 11
    for tag, found in resumed.items():
        begin = int(tag.removeprefix("inside"))
        steps = whole["steps"][:begin] + found["steps"]
        seen = [sum(column) for column in zip(*steps, strict=True)]
        assert min(seen) == 1, tag
        assert sorted(seen)[-3:] in ([1, 1, 1], [1, 1, 2], [1, 2, 2]), tag  # to fill epochs up
