"""Figures of steps, and what reports them, against mathematics and torch."""

import csv

import zerorun.metrics
import zerorun.metrics.meter
from zerorun import monitor
from zerorun.metrics import FIELDS, rank_path
from zerorun.monitor import Monitor, MonitorMaster

from cases.models import *

STEPS = 4
NAMES = {field.name for field in FIELDS if field.sources != "train"}


class RecordedClock:
    """Stands for the module `time`, and keeps what it told."""

    time = staticmethod(time.time)

    def __init__(self) -> None:
        self.seen: list[float] = []

    def perf_counter(self) -> float:
        self.seen.append(time.perf_counter())
        return self.seen[-1]


def start(stage: int = 2, **keys: object) -> zerorun.ZeroEngine:
    _, engine = started(config(stage, **keys))
    return engine


def case_figures_are_those_of_the_steps() -> None:
    for stage in range(4):
        clock, own = RecordedClock(), []
        with mock.patch.object(zerorun.metrics.meter, "time", clock):
            engine = start(stage)
            assert engine.metrics() is None
            seen = reports_of(engine)
            for step in range(STEPS):
                own.append(backward(engine, step).item())
                engine.step()
        assert [m["step"] for m in seen] == [1, 2, 3, 4]
        assert [m["samples"] for m in seen] == [BATCH * n for n in (1, 2, 3, 4)]
        assert [m["loss"] for m in seen] == own
        for m in seen:
            assert set(m) <= NAMES
            assert (m["lr"], m["skipped"]) == (1e-2, False)
            clipped = min(1.0, m["grad_norm"])
            assert math.isclose(m["clipped_grad_norm"], clipped, rel_tol=1e-4)
            assert min(m["forward_ms"], m["backward_ms"]) > 0
            assert m["memory"]["parameters"] > 0
            assert 0 < m["rss_bytes"] <= m["peak_rss_bytes"]
            assert m["collectives"]["all_reduce"][0] >= 1
        # The parts of a step do not overlap, and the steps fill the time.
        total = sum(m["step_ms"] for m in seen)
        assert math.isclose(total, 1e3 * (clock.seen[-1] - clock.seen[0]), rel_tol=1e-9)
        for m in seen[1:]:
            names = ("forward_ms", "backward_ms", "call_ms", "other_ms")
            assert math.isclose(sum(m[n] or 0.0 for n in names), m["step_ms"], rel_tol=1e-6)
            assert m["comm_ms"] <= m["step_ms"]
        assert engine.metrics() == seen[-1]
        engine.destroy()
        assert engine.metrics() == seen[-1]


def case_a_batch_of_micro_steps_is_one_report() -> None:
    engine = start(1, gradient_accumulation_steps=3)
    seen = reports_of(engine)
    losses = train(engine, 6)
    assert [m["step"] for m in seen] == [1, 2]
    assert [m["samples"] for m in seen] == [3 * BATCH, 6 * BATCH]
    batches = [sum(losses[:3]) / 3, sum(losses[3:]) / 3]
    assert_close(means([m["loss"] for m in seen], engine), batches)
    tokens = seen[1]["tokens_per_s"] * seen[1]["step_ms"] / 1e3
    assert round(tokens) == 3 * BATCH * 8


def case_a_listener_that_fails_does_not_end_the_training() -> None:
    engine, seen = start(), []

    def broken(metrics: dict[str, object]) -> None:
        if metrics["step"] == 2:
            raise OSError("no space left")

    engine.add_listener(broken)
    engine.add_listener(lambda metrics: seen.append(metrics["step"]))
    with logged() as lines:
        train(engine, STEPS)
    assert seen == [1, 2, 3, 4]
    (warned,) = (line for line in lines if line.startswith("WARNING"))
    assert "no space left" in warned
    assert "step 2" in warned


def case_progress_lines_and_times() -> None:
    engine = start(steps_per_print=2, wall_clock_breakdown=True)
    with logged() as lines:
        train(engine, STEPS)
    progress = [line for line in lines if "step=" in line]
    times = [line for line in lines if "time (ms) | fwd:" in line]
    assert (len(progress), len(times)) == ((2, STEPS) if RANK == 0 else (0, 0))
    if RANK == 0:
        assert [line.split(",")[0] for line in progress] == ["INFO step=2", "INFO step=4"]
        assert "skipped=0, lr=[0.01], mom=[(0.9, 0.999)], loss=" in progress[0]
        assert "bwd_allreduce: " in times[0]
    quiet = io.StringIO()
    engine = start(steps_per_print=float("inf"))
    with contextlib.redirect_stderr(quiet):
        train(engine, 2)
    assert not quiet.getvalue()


def case_a_metrics_file_is_what_a_listener_sees(folder: Path) -> None:
    path = folder / "run" / "m.jsonl"
    model = make()
    engine = shard(model, stage=2, optimizer=adamw(model), metrics=path)
    seen = reports_of(engine)
    train(engine, STEPS)
    own = rank_path(path, RANK)
    assert own.name == ("m.jsonl" if RANK == 0 else "m.rank1.jsonl")
    head, *lines = [json.loads(line) for line in own.read_text().splitlines()]
    assert (head["zerorun_metrics"], head["rank"], head["world_size"]) == (1, RANK, WORLD_SIZE)
    assert head["run"]["environment"]["torch"] == torch.__version__
    assert ["/zero_optimization/stage", 2, False] in head["run"]["config"]
    assert lines == [{"rank": RANK} | line for line in json.loads(json.dumps(seen))]


def case_a_metrics_file_that_one_rank_cannot_open_is_told_on_all(folder: Path) -> None:
    if RANK == WORLD_SIZE - 1:
        (folder / "metrics.rank1.jsonl").mkdir(parents=True)
    keys = {"zerorun": {"comm_timeout": 10, "metrics": str(folder / "metrics.jsonl")}}
    raises(zerorun.IoError, "Is a directory", start, **keys)


def case_collectives_have_counts_sizes_and_times() -> None:
    refuses("comms_logger", zerorun.metrics.log_summary)
    engine = start(2, comms_logger={"enabled": True})
    counted: list[dict[str, list[int]]] = []
    engine.add_listener(lambda m: counted.append(m["collectives"]))
    train(engine, STEPS)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        found = zerorun.metrics.log_summary(show_straggler=True, return_dict=True)
    summary = found["summary"]
    rows = [row for sizes in summary.values() for row in sizes.values()]
    for op in ("reduce_scatter", "all_gather"):
        calls, nbytes = (sum(step.get(op, [0, 0])[at] for step in counted) for at in (0, 1))
        assert sum(row["count"] for row in summary[op].values()) == calls > 0
        assert sum(n * row["count"] for n, row in summary[op].items()) == nbytes
    for row in rows:
        assert 0 < row["total_latency_ms"] < 60e3
        assert row["busbw_avg_gbps"] <= row["tput_avg_gbps"]
    waited = found["straggler_analysis"]["reduce_scatter"]
    assert all(row["total_straggler_ms"] >= 0 for row in waited.values())
    assert ("reduce_scatter" in text.getvalue()) == (RANK == 0)
    metadata = {"world_size": WORLD_SIZE, "rank": RANK, "timestamp": ""}
    assert found["metadata"] | {"timestamp": ""} == metadata
    only = start(2, comms_logger={"enabled": True, "prof_all": False, "prof_ops": ["all_gather"]})
    train(only, 1)
    assert set(next(iter(only._meter.listeners)).timed) == {"all_gather"}
    memory = []
    for at in range(6):  # every rank asks of the engines in one order, wherever they lie
        memory.append([object() for _ in range(RANK * 50 * at)])
        train(start(1, comms_logger={"enabled": True}), 1)
    zerorun.metrics.log_summary(show_straggler=True)


def case_monitors_get_deepspeeds_events(folder: Path) -> None:
    engine = start(
        fp16={"enabled": True, "initial_scale_power": 8},
        wall_clock_breakdown=True,
        csv_monitor={"enabled": True, "output_path": str(folder), "job_name": "job"},
    )
    assert engine.monitor.enabled
    seen = reports_of(engine)
    with logged():
        train(engine, STEPS)
    engine.monitor.write_events([("Mine/accuracy", 0.5, 7)])
    engine.communicator.barrier()
    if RANK > 0:
        return
    paths = (folder / "job").iterdir()
    files = {path.name: list(csv.reader(path.read_text().splitlines())) for path in paths}
    for name, key in (("lr", "lr"), ("train_loss", "loss"), ("loss_scale", "loss_scale")):
        head, *rows = files[f"Train_Samples_{name}.csv"]
        assert head == ["step", name]
        expected = [[m["samples"], m[key]] for m in seen if m[key] is not None]
        assert [[int(a), float(b)] for a, b in rows] == expected
        assert rows
    for part in ("forward", "backward", "backward_inner", "backward_allreduce", "step"):
        assert f"Train_Samples_elapsed_time_ms_{part}.csv" in files
    assert files["Mine_accuracy.csv"] == [["step", "accuracy"], ["7", "0.5"]]


def case_a_monitor_without_its_package_is_an_error_before_training() -> None:
    model = make()
    for section, package in (("wandb", "wandb"), ("comet", "comet_ml")):
        settings = config(1, **{section: {"enabled": True}})
        text = f"/{section}/enabled needs the Python package {package}"
        refuses(text, initialize, model, adamw(model), config=settings)
    engine, *_ = initialize(model, adamw(model), config=config(1))
    train(engine, 1)


def case_a_monitor_whose_server_is_down_is_one_warning() -> None:
    class Down(Monitor):
        def write_events(self, event_list: object) -> None:
            raise ConnectionError("connection refused")

    sections = mock.patch.dict(monitor.SECTIONS, csv_monitor=Down)
    with sections, logged() as lines:
        train(start(csv_monitor={"enabled": True}), STEPS)
    warned = [line for line in lines if "connection refused" in line]
    assert len(warned) == (1 if RANK == 0 else 0)
    assert MonitorMaster({}).csv_monitor is None


def case_a_skipped_step_has_no_norm() -> None:
    engine = start(fp16={"enabled": True, "initial_scale_power": 8})
    seen = reports_of(engine)
    for factor in (1.0, float("inf")):
        engine.backward(own_loss(engine, 0) * factor)
        engine.step()
    assert [(m["skipped"], m["grad_norm"] is None) for m in seen] == [(False, False), (True, True)]
    assert seen[-1]["skipped_steps"] == engine.skipped_steps == 1


def case_a_timeline_has_each_ranks_work(folder: Path) -> None:
    path = folder / "new" / "trace.json"
    settings = {"comm_timeout": 30, "trace": {"file": str(path), "steps": [2, 3]}}
    engine = start(2, zerorun=settings)
    counted = []
    engine.add_listener(lambda m: counted.append(m["collectives"]["reduce_scatter"][0]))
    with logged():
        train(engine, STEPS)
    engine.communicator.barrier()
    trace = json.loads(path.read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == set(range(WORLD_SIZE))
    for rank in range(WORLD_SIZE):
        own = [event for event in spans if event["pid"] == rank]
        names = [event["name"] for event in own]
        counts = {"forward": 2, "backward": 2, "step 2": 1, "step 3": 1}
        counts |= {"optimizer": 4, "reduce_scatter": sum(counted[1:3])}  # decision and update
        assert {name: names.count(name) for name in counts} == counts
        backward = [event for event in own if event["name"] == "backward"]
        assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in own)
        assert backward[0]["ts"] + backward[0]["dur"] <= backward[1]["ts"]
    for hidden in trace["otherData"]["hidden"]:
        assert 0.0 <= hidden["reductions"] <= 1.0
    engine = start(1, zerorun={"trace": {"file": str(folder / "late.json"), "steps": [2, 9]}})
    with logged() as lines:
        train(engine, 2)
        end_engines()
        del engine
        gc.collect()
    assert [line for line in lines if "training ended before step 9" in line]
    assert not (folder / "late.json").exists()
    backwards = {"trace": {"file": str(path), "steps": [3, 2]}}
    refuses("the first and the last step", start, 1, zerorun=backwards)


def case_a_dropped_batch_is_not_in_the_figures() -> None:
    engine = start(1)
    seen = reports_of(engine)
    engine.backward(own_loss(engine, 0) * 100.0)
    engine.zero_grad()
    loss = own_loss(engine, 1)
    engine.zero_grad()  # where loops of torch have it, too
    engine.backward(loss)
    engine.step()
    assert math.isclose(seen[0]["loss"], loss.item(), rel_tol=1e-6)
    tokens = seen[0]["tokens_per_s"] * seen[0]["step_ms"] / 1e3
    assert round(tokens) == BATCH * 8
