"""What monitors have written, read back and compared with the metrics file.

Each test needs its package (`pip install tensorboard wandb`), without which it is skipped.
"""

import struct

import numpy as np
from metrics_files import line
from prelude import *
from zerorun.metrics.files import MetricsFile
from zerorun.monitor.__main__ import main

NAMES = {
    "train_loss": "loss",
    "lr": "lr",
    "grad_norm": "grad_norm",
    "loss_scale": "loss_scale",
    "tokens_per_sec": "tokens_per_s",
}


def metrics_file(path: Path) -> list[dict[str, object]]:
    """Of an fp16 run with a skipped step, which has no norm."""
    lines = [line(step, lr=1e-3 * step, tokens_per_s=1000.0 + step) for step in range(1, 21)]
    lines[2] |= {"grad_norm": None, "skipped": True}
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return lines


def scalars(lines: list[dict[str, object]], key: str) -> list[tuple[object, object]]:
    return [(each["samples"], each[key]) for each in lines if each[key] is not None]


def test_tensorboards_reader_agrees_with_the_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines = metrics_file(tmp_path / "m.jsonl")
    assert main([str(tmp_path / "m.jsonl"), "--tensorboard", str(tmp_path / "board")]) == 0
    read = EventAccumulator(str(tmp_path / "board" / "m"), size_guidance={"scalars": 0})
    read.Reload()
    for name, key in NAMES.items():
        events = [(e.step, e.value) for e in read.Scalars(f"Train/Samples/{name}")]
        assert events == [(at, float(np.float32(value))) for at, value in scalars(lines, key)]


def test_metrics_are_written_to_a_pipe(tmp_path: Path) -> None:
    path, lines = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: lines.append(path.read_text()), daemon=True)
    reader.start()
    file = MetricsFile(path, 0, 1, {})
    file({"step": 1})
    del file  # closes it
    reader.join()
    assert [json.loads(line).get("step") for line in lines[0].splitlines()] == [None, 1]


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    lines = metrics_file(tmp_path / "m.jsonl")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=metrics_file, args=[tmp_path / "pipe"], daemon=True)
    writer.start()
    assert main([str(tmp_path / "pipe"), "--csv", str(tmp_path / "csv")]) == 0
    writer.join()
    written = (tmp_path / "csv" / "pipe" / "Train_Samples_train_loss.csv").read_text()
    assert len(written.splitlines()) == 1 + len(lines)


def test_a_file_that_is_replaced_is_read_as_it_was(tmp_path: Path, monkeypatch: Patch) -> None:
    file, other = tmp_path / "m.jsonl", tmp_path / "other.jsonl"
    lines = metrics_file(file)
    metrics_file(other)
    with other.open("a") as more:
        more.write(json.dumps({"step": 21, "samples": 168, "loss": 1.0}) + "\n")

    def replace(_seconds: float) -> None:
        if other.exists():
            other.replace(file)
        else:
            file.unlink(missing_ok=True)

    monkeypatch.setattr("time.sleep", replace)
    options = ["--csv", str(tmp_path / "csv"), "--follow", "--quiet", "0.1"]
    assert main([str(file), *options]) == 0
    written = (tmp_path / "csv" / "m" / "Train_Samples_train_loss.csv").read_text()
    assert len(written.splitlines()) == 1 + len(lines)


def records(path: Path) -> Iterator[bytes]:
    """The records of a file of wandb's: LevelDB's log, after a head of seven bytes."""
    data, at, record, block = path.read_bytes(), 7, b"", 32 << 10
    while at + 7 <= len(data):
        if block - at % block < 7:  # a head does not cross blocks
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # whole, or the last part
            yield record
            record = b""


def test_wandbs_offline_file_agrees_with_the_file(tmp_path: Path, monkeypatch: Patch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    for name, value in (("MODE", "offline"), ("DIR", str(tmp_path)), ("SILENT", "true")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    lines = metrics_file(tmp_path / "m.jsonl")
    assert main([str(tmp_path / "m.jsonl"), "--wandb", "project"]) == 0
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows: dict[int, dict[str, object]] = {}
    for data in records(file):
        record = wandb_internal_pb2.Record.FromString(data)
        items = [(item.key or ".".join(item.nested_key), item) for item in record.history.item]
        row = {key: json.loads(item.value_json) for key, item in items}
        if row:
            rows.setdefault(row["_step"], {}).update(row)
    for name, key in NAMES.items():
        full = f"Train/Samples/{name}"
        found = [(step, row[full]) for step, row in sorted(rows.items()) if full in row]
        assert found == scalars(lines, key)
