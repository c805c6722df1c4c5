"""The train program under the launcher, as users meet it when something goes wrong."""

import itertools
import math
import resource
from collections import defaultdict

from prelude import *
from terminal import Terminal
from zerorun.metrics import FIELDS
from zerorun.report import read_run


@each(
    "options expected",
    (["--stepz", 3], "unknown option --stepz; did you mean --steps?"),
    (["--temperature", "nan"], "--temperature: expected a number from 0 to 100, got 'nan'"),
    (["--micro_batch", 10**12], "iB for the activations of each of 2 ranks"),
    (["--model", "text.json"], "/n_positions is missing"),
    (["--config", "text.json", "--deepspeed", "model.json"], "got two: "),
    (["--data", "nowhere"], "cannot open nowhere"),
    (["--config", "csv.json"], "/csv_monitor/enabled is true, which only PyTorch programs"),
    (["--resume", "nowhere"], "--resume nowhere: no such folder"),
)
def test_bad_input_is_said_once_with_exit_code_2(train, tmp_path, options, expected):
    (tmp_path / "text.json").write_text("{}")
    (tmp_path / "csv.json").write_text('{"csv_monitor": {"enabled": true}}')
    _, errors = train(*options, code=2)
    assert errors.count(expected) == 1, errors
    assert errors.count("error") == 2  # this one, and the launcher's on the rank


def test_an_interrupted_run_saves_and_continues(start_train, train):
    job = start_train("--steps", 10**6, "--save", "run")
    wait_for_step(job, 1)
    code, output, _ = interrupted(job)
    assert code == 128 + signal.SIGINT
    assert "continue with --resume run" in output
    step = int(output.split("stopped by a signal after step ")[1].split(";")[0])
    output, _ = train("--steps", step + 1, "--save", "run", "--resume", "run")
    assert f"resumed from run after step {step}" in output
    output, _ = train("--steps", step + 1, "--save", "run", "--resume", "run")
    assert f"no step to take: run is after step {step + 1}, and --steps" in output


def test_a_run_whose_terminal_closes_saves(start_train, train, tmp_path):
    job = start_train("--steps", 10**6, "--save=")
    interrupted(job)
    terminal = Terminal([*job.args, "--save", "run"], tmp_path, environment())
    terminal.read_until("step 1/")
    os.close(terminal.master)
    _, status = os.waitpid(terminal.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    output, _ = train("--steps", 1, "--save", "run", "--resume", "run")
    assert "no step to take: run is after step " in output


@each(
    "line told",
    ("ulimit -n 12; {}", "cannot make a pipe: Too many open files: raise the limit of open files"),
    ("ulimit -f 8; {}", "File too large: raise the limit of a file's size (ulimit -f)"),
    ("mkdir gone; cd gone; rmdir ../gone; {}", 'change to one that exists (cd "$PWD" if it was'),
    ("mkdir gone; cd gone; rmdir ../gone; zerorun a.py", "the working directory cannot be read"),
)
def test_what_the_shell_forbids_is_said_with_the_remedy(tmp_path, line, told):
    write_small_job(tmp_path)
    train = (
        f"zerorun --num_gpus 2 train --data {tmp_path}/text --model {tmp_path}/model.json --save="
    )
    assert told in shell(line.format(train), tmp_path).stderr


def test_a_run_whose_every_step_overflows_is_a_failure_that_can_go_on(train, tmp_path):
    fp16 = {"enabled": True, "initial_scale_power": 40, "hysteresis": 1}
    settings = {"train_batch_size": 4, "fp16": fp16}
    (tmp_path / "fp16.json").write_text(json.dumps(settings))
    options = ("--config", "fp16.json", "--save", "run")
    _, errors = train("--steps", 2, *options, code=1)
    assert errors.count("no step was applied: none of the 2 gradients was finite") == 1, errors
    assert "loss scale is 2.74878e+11 now" in errors
    train("--steps", 40, *options, "--resume", "run")


def test_an_interrupted_run_that_cannot_save_says_so(start_train, tmp_path):
    job = start_train("--steps", 10**6, "--save", "run")
    wait_for_step(job, 1)
    (tmp_path / "run" / ".train.lock").unlink()
    (tmp_path / "run").rmdir()
    (tmp_path / "run").write_text("a file")
    code, output, errors = interrupted(job)
    assert code == 1
    assert "cannot create the folder run" in errors
    assert "failed with exit code 1" in errors.splitlines()[-1]
    assert "stopped by a signal" not in output


@each(
    "option told",
    ("--metrics", "cannot write the metrics file /dev/full"),
    ("--trace", "cannot write /dev/full"),
)
def test_a_full_disk_does_not_end_the_run(train, option, told):
    output, errors = train("--steps", 5, "--save=", option, "/dev/full")
    assert "step 5/5" in output
    assert errors.count(told) == 1


def test_a_timeline_that_cannot_be_written_is_told_before_training(train):
    output, errors = train("--steps", 3, "--save=", "--trace", "/proc/none/t.json", code=1)
    assert "cannot write to the folder of /proc/none/t.json" in errors
    assert "step 1/3" not in output


def test_other_data_of_the_same_length_are_noticed(train, tmp_path):
    train("--steps", 1, "--save", "run")
    other = (tmp_path / "text").read_text().replace("square", "circle")
    (tmp_path / "other").write_text(other)
    _, errors = train("--steps", 2, "--save=", "--resume", "run", "--data", "other")
    assert errors.count("will not see the data that the saved run would have seen") == 1


@pytest.mark.usefixtures("start_train")
def test_a_file_size_limit_is_an_error_and_not_a_death(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    model = tmp_path / "model.json"
    model.write_text(json.dumps(json.loads(model.read_text()) | {"n_embd": 256}))
    # One rank: more share memory that would count.
    program = BUILD / "libexec" / "zerorun" / "train"
    options = ("--data", "text", "--model", "model.json", "--steps", "0", "--save", "run")
    result = ran([program, *options], cwd=tmp_path, timeout=DEADLINE, preexec_fn=limit)
    assert result.returncode == 1
    assert "File too large" in result.stderr
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".train.lock", "config.json"}


@pytest.mark.usefixtures("start_train")
def test_without_standard_output_no_file_gets_its_text(tmp_path):
    program = BUILD / "libexec" / "zerorun" / "train"
    options = ("--data", "text", "--model", "model.json", "--steps", "1", "--save", "run")
    result = ran(["sh", "-c", 'exec "$@" >&-', "sh", program, *options], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in files if b"step 1/1" in path.read_bytes()]


def check_trace(trace):
    """It is in Chrome's trace event format, as far as a viewer needs it.

    After "Trace Event Format" (Google, 2016): the JSON Object Format, complete events ("X") and
    metadata ("M"). Events of one row lie one within the other or apart.
    """
    assert trace["displayTimeUnit"] in {"ms", "ns"}
    rows, named = defaultdict(list), set()
    for event in trace["traceEvents"]:
        row = event["pid"], event["tid"]
        assert all(isinstance(number, int) for number in row), event
        if event["ph"] == "M":
            of, _, key = event["name"].partition("_")
            assert of in {"process", "thread"}, event
            assert isinstance(event["args"][key], {"name": str, "sort_index": int}[key]), event
            named |= {row} if event["name"] == "thread_name" else set()
        else:
            assert event["ph"] == "X", event
            assert event["name"], event
            assert all(math.isfinite(event[at]) and event[at] >= 0 for at in ("ts", "dur")), event
            rows[row].append(event)
    assert rows.keys() <= named
    slack_us = 1e-3  # of decimal numbers
    for events in rows.values():
        open_ends = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            end = event["ts"] + event["dur"]
            while open_ends and open_ends[-1] <= event["ts"] + slack_us:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + slack_us, event
            open_ends.append(end)


def hidden_part(events, which):
    """|busy and compute without wait| / |busy|, from a rank's spans alone, at all their ends."""
    spans = [(e["cat"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    edges = sorted({time for _, *ends in spans for time in ends})
    busy = hidden = 0.0
    for begin, end in itertools.pairwise(edges):
        kinds = {kind for kind, first, last in spans if first <= (begin + end) / 2 < last}
        if which.removesuffix("s") in kinds:
            busy += end - begin
            hidden += end - begin if "compute" in kinds and "wait" not in kinds else 0.0
    return hidden / busy if busy else None


def test_a_timeline_and_the_utilisation_of_a_run(train, tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3, "overlap_comm": true}}')
    options = ("--steps", 5, "--save=", "--metrics", "m.jsonl", "--trace", "t/trace.json")
    output, _ = train(*options, "--config", "ds.json")
    assert "timeline of steps 2 to 4 in t/trace.json; overlapped with computation: " in output
    trace = json.loads((tmp_path / "t" / "trace.json").read_text())
    for rank in range(2):
        own = [event for event in trace["traceEvents"] if event["pid"] == rank]
        modules = [(e["name"], e["args"]["of"]) for e in own if "of" in e.get("args", {})]
        assert modules.count(("forward", "h.0")) == modules.count(("backward", "h.0")) == 3
        assert [e["name"] for e in own].count("forward and backward") == 3
        for which, part in trace["otherData"]["hidden"][rank].items():
            assert part == pytest.approx(hidden_part(own, which), abs=1e-6)
    check_trace(trace)
    limits = []
    for rank, name in enumerate(("m.jsonl", "m.rank1.jsonl")):
        head, *steps, last = map(json.loads, (tmp_path / name).read_text().splitlines())
        assert (head["zerorun_metrics"], head["rank"], head["world_size"]) == (1, rank, 2)
        assert ["/zero_optimization/stage", 3, False] in head["run"]["config"]
        limits.append(head["run"]["limits"])  # the slowest rank's, on all
        assert set(limits[0]) == {"all_gather", "all_reduce", "reduce_scatter"}
        assert limits[0] == limits[rank]
        for category, nbytes in head["run"]["plan"].items():
            assert steps[-1]["memory_peak"][category] <= 1.03 * nbytes + 64
        assert [step["step"] for step in steps] == [1, 2, 3, 4, 5]
        for step in steps:
            assert 0.0 < step["mfu"] < 2.0
            assert set(step) <= {field.name for field in FIELDS}
            assert step["collectives"]["all_gather"][0] > 0
            assert step["data_ms"] + step["fwd_bwd_ms"] + step["comm_ms"] <= step["step_ms"]
        assert len(last["param_hash"]) == 16
    assert read_run(tmp_path / "m.jsonl", tmp_path / "t" / "trace.json").bad_lines == 0
