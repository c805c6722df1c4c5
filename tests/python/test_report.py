"""The report, and other readers of a run's metrics files, in whatever state they are: what they
read, what the page holds, and whom it serves."""

import gc
import http.client
import socket
from urllib.parse import urlsplit

import zerorun as package
from browser import browse
from metrics_files import RUN, line, write
from prelude import *
from terminal import Terminal
from zerorun.metrics import MetricsFile, markdown
from zerorun.monitor.__main__ import main as monitor_main
from zerorun.report import html, read_run, timeline
from zerorun.report import reader as reader_module
from zerorun.report.__main__ import main
from zerorun.report.page import PageServer, data_of
from zerorun.report.reader import MOST, Columns, RunReader
from zerorun.top import latest
from zerorun.top import main as top_main


def data(path: Path) -> dict[str, Any]:
    (run,) = data_of([read_run(path)])["runs"]
    return run


def write_trace(path: Path, ranks: int = 2) -> Path:
    """Of one step: a reduction of 40 us, 25 of them beside computation."""
    spans = [("forward", "compute", 1, 0.0, 100.0), ("wait", "wait", 1, 50.0, 15.0)]
    spans += [("reduce_scatter", "reduction", 2, 60.0, 40.0), ("step 2", "step", 0, 0.0, 100.0)]
    events: list[dict[str, object]] = []
    for rank in range(ranks):
        names = [("process_name", 0, f"rank {rank}")]
        names += [("thread_name", *row) for row in enumerate(("steps", "program", "reductions"))]
        for kind, row, name in names:
            place = {"pid": rank, "tid": row, "args": {"name": name}}
            events.append({"ph": "M", "name": kind} | place)
        for name, kind, row, begin, length in spans:
            span = {"ph": "X", "name": name, "cat": kind, "pid": rank, "tid": row, "ts": begin}
            events.append(span | {"dur": length, "args": {"of": "<b>"}})
    hidden = [{"reductions": 0.875, "gathers": None}] * ranks
    about = {"steps": [2, 2], "hidden": hidden, "dropped_events": 0}
    trace = {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}
    path.write_text(json.dumps(trace))
    return path


def test_a_timeline_is_shown_with_the_traces_own_figures(tmp_path: Path, capsys: Capture) -> None:
    path, page = write(tmp_path / "m.jsonl"), str(tmp_path / "r.html")
    assert data(path)["timeline"] is None
    trace = write_trace(tmp_path / "trace.json", ranks=10)
    shown = read_run(path, trace).timeline
    assert shown["hidden"] == [{"reductions": 0.875, "gathers": None}] * 10
    assert shown["duration_ms"] == 0.1
    assert sorted({row["rank"] for row in shown["rows"]}) == list(range(8))
    reductions = next(row for row in shown["rows"] if row["name"] == "reductions")
    [[begin, length, kind, label]] = reductions["spans"]
    assert (begin, length, shown["kinds"][kind]) == (0.06, 0.04, "reduction")
    assert shown["labels"][label] == "reduce_scatter of <b>"
    assert read_run(tmp_path).timeline == shown  # found in the run's folder
    assert main([str(path), "--trace", str(trace), "-o", page]) == 0
    trace.write_text('{"displayTimeUnit": 1, "traceEvents": [1]}')
    for traces, told in (
        ([trace], "no timeline (KeyError"),
        ([trace, trace], "expected one for each RUN at most"),
        ([tmp_path / "none"], f"cannot read the timeline {tmp_path / 'none'}: No such"),
    ):
        options = [word for each in traces for word in ("--trace", str(each))]
        assert main([str(path), *options, "-o", page]) == 2
        assert told in capsys.readouterr().err


def test_of_a_long_timeline_the_longest_spans_are_shown(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(timeline, "MOST_SPANS", 4)
    path = write(tmp_path / "m.jsonl")
    shown = read_run(path, write_trace(tmp_path / "trace.json")).timeline
    lengths = [span[1] for row in shown["rows"] for span in row["spans"]]
    assert (lengths, shown["left_out"]) == ([0.1] * 4, 4)


def test_the_documentation_is_the_tables() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == markdown(), (
        "PYTHONPATH=build/release/python python -m zerorun.metrics > docs/metrics.md"
    )


def test_a_runs_figures(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl")
    write(path, rank=1)
    assert data(path)["findings"] == []  # it is steady
    for rank in (1, 2, 3):  # files of more ranks than the run has are an older run's
        write(path, rank=rank, backward_ms=120.0)
    for place in (path, tmp_path):
        assert sorted(read_run(place).ranks) == [0, 1]
    found = data(path)
    assert found["columns"]["loss"] == [float(f"{4.0 / step:.6g}") for step in range(1, 11)]
    assert found["collectives"] == {"reduce_scatter": [20, 40000, 5.0]}
    assert found["ranks"][1]["memory"] == {"parameters": 2000}
    assert found["plan"] == {"parameters": 2000, "optimizer": 6000}
    assert found["limits"] == {"reduce_scatter": 5e9}
    assert any("Rank 1 computes 71 % longer" in text for text in found["findings"])
    # Collectives without times have bytes.
    write(path, collectives={"a": [1, 10, None], "b": [1, 10], "c": [1, 2, 3]})
    expected = {"a": [10, 100, 0.0], "b": [10, 100, 0.0], "c": [10, 20, 30.0]}
    assert data(path)["collectives"] == expected | {"reduce_scatter": [20, 40000, 5.0]}


def test_what_is_skipped_and_exposed_is_said(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    file = MetricsFile(path, 0, 1, RUN)
    for step in range(1, 21):
        figures = {"skipped": step % 5 == 0, "loss_scale": 2.0 ** (16 - step // 5)}
        file(line(step, reduce_ms=20.0, other_ms=30.0, **figures))
    texts = data(path)["findings"]
    assert any("4 of 20 steps were skipped" in t and "fell 4 times" in t for t in texts)
    assert any("Reductions are waited for in 20 %" in text for text in texts)
    assert any("30 % of a step is spent outside" in text for text in texts)


@each(
    "text expected",
    (None, "no such file"),
    ("\x00\xff\n\x00 garbage", "no line with a step in it"),
    ('{"zerorun_metrics": 99, "rank": 0}\n', "of version 99"),
    ('{"zerorun_metrics": "1"}\n', "of version 1"),
)
def test_what_is_no_run_is_told(tmp_path: Path, capsys: Capture, text: Any, expected: str) -> None:
    path, page = tmp_path / "red\033[31m.jsonl", tmp_path / "out"
    if text is not None:
        path.write_text(text)
    tools = ((main, ["-o", str(page)]), (top_main, []), (monitor_main, ["--csv", str(tmp_path)]))
    for tool, options in tools:
        assert tool([str(path), *options]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert expected in error.lower()
        assert f"{tmp_path}/red\\x1b[31m.jsonl" in error  # without control bytes
    assert not page.exists()


@each(
    "text",
    '{"step": 2, "loss": 1' + "0" * 400 + ', "comm_ms": 1e999, "memory_peak": {"a": NaN}}',
    '{"step": 2, "loss": "x", "step_ms": null, "lr": [1], "loss_scale": "a"}',
    '{"step": 2, "rank": -5, "collectives": {"a": ["x", 1]}, "memory_peak": [1]}',
    "[" * 100_000,
    '{"a":' * 100_000,
    "true",
    '{"zerorun_metrics": 1, "rank": "x", "world_size": "y", "run": []}',
    '{"zerorun_metrics": 1, "run": {"config": [[1], 2], "environment": {"a": 1e999}}}',
    '{"zerorun_metrics": 1, "world_size": 2, "run": {"parameters": 5, "config": '
    '[["/zero_optimization/stage", "x", false], ["/optimizer/type", 5, true]]}}',
    '{"step": 2, "lo',
    "x" * (3 << 20),
    ids=lambda text: text[:40],
)
@each("first", True, False)
def test_no_line_ends_a_reader(tmp_path: Path, text: str, first: bool) -> None:
    path, good = tmp_path / "m.jsonl", json.dumps(line(1))
    path.write_bytes("\n".join([text, good] if first else [good, text]).encode("latin-1") + b"\n")
    assert main([str(path), "-o", str(tmp_path / "r.html")]) == 0
    assert monitor_main([str(path), "--csv", str(tmp_path)]) == 0
    in_tail = first or len(text) < 1 << 15  # it looks at the end of a file only
    assert top_main([str(path)]) == (0 if in_tail else 2)


def test_a_page_is_one_file_that_data_cannot_break(tmp_path: Path) -> None:
    runs = [read_run(write(tmp_path / f"{name}.jsonl")) for name in ("a", "b")]
    page = html(runs)
    assert len(page) < 3 << 20
    assert "</script><b>" not in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    found = re.search(r'<script id="data"[^>]*>(.*?)</script>', page, re.DOTALL)
    shown = json.loads(found[1])["runs"]
    assert [run["name"] for run in shown] == ["a", "b"]
    assert shown[0]["environment"] == {"host": "</script><b>&"}


def get(url: str, **headers: str) -> tuple[int, str]:
    parts = urlsplit(url)
    with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=20)) as connection:
        connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_a_page_that_follows_its_run_is_for_this_machine_and_token(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl")
    run = lambda: [read_run(path)]  # noqa: E731 - read anew each time
    server = PageServer(lambda: html(run(), live=True), lambda: data_of(run(), live=True))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        root = server.url.partition("?")[0]
        assert "zerorun report" in get(server.url)[1]
        assert [get(url)[0] for url in (root, f"{root}?token=wrong")] == [403, 403]
        assert get(server.url, Host="evil.example")[0] == 403
        assert get(server.url.replace("/?", "/other?"))[0] == 404
        figures = server.url.replace("/?", "/data.json?")
        assert json.loads(get(figures)[1])["runs"][0]["steps"] == 10
        write(path, steps=12)
        assert json.loads(get(figures)[1])["runs"][0]["columns"]["step"][-1] == 12
        with socket.create_connection(("127.0.0.1", server.port)) as gone:
            gone.sendall(b"GET / HTTP/1.1\r\n")  # a browser that goes away
        assert get(server.url)[0] == 200
        path.unlink()
        assert get(figures)[0] == 503
        for port in (server.port, 99999):
            raises(package.IoError, "give another --port", PageServer, str, dict, port)
    finally:
        server.close()
        thread.join()


def test_a_file_is_passed_on_while_it_grows(tmp_path: Path) -> None:
    path, out = tmp_path / "m.jsonl", tmp_path / "csv"
    path.write_text(json.dumps(line(1)) + "\n" + json.dumps(line(2))[:20])

    def go_on() -> None:
        time.sleep(0.1)
        with path.open("a") as file:
            file.write(json.dumps(line(2))[20:] + "\n" + '{"param_hash": "0"}\n')

    thread = threading.Thread(target=go_on)
    thread.start()
    assert monitor_main([str(path), "--csv", str(out), "--follow"]) == 0
    thread.join()
    rows = (out / "m" / "Train_Samples_train_loss.csv").read_text().split()
    assert rows == ["step,train_loss", "8,4.0", "16,2.0"]
    assert monitor_main([str(path)]) == 2  # to nothing


def test_a_run_that_resumed_shows_its_last_course(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", steps=10)
    file = MetricsFile(path, 0, 2, RUN)
    for step in (6, 7, 8):
        file(line(step, loss=0.5))
    table = read_run(path).first.columns.table()
    assert table["step"] == [*range(1, 9)]
    assert table["loss"][5:] == [0.5, 0.5, 0.5]


def test_a_full_disk_is_an_error_that_names_the_file_and_nothing_is_written_later() -> None:
    raises(OSError, "No space left on device: '/dev/full'", MetricsFile, "/dev/full", 0, 2, RUN)
    gc.collect()  # what failed to be closed would warn


def test_any_number_of_steps_becomes_some_points() -> None:
    columns, count = Columns(), 100_000
    for step in range(1, count + 1):  # every other one is skipped, so the scale falls as often
        scale = {"loss_scale": 4.0 if step % 2 else 8.0, "skipped": step % 2 == 0}
        columns.add({"step": step, "loss": float(step)} | scale)
    table = columns.table()
    assert MOST <= len(table["step"]) < 2 * MOST
    assert table["step"][-1] == count
    assert columns.mean("loss") == pytest.approx((count + 1) / 2)
    width = table["step"][1] - table["step"][0]
    assert table["loss"][0] == pytest.approx((width + 1) / 2)
    assert set(table["loss_scale"]) <= {4.0, 8.0}
    assert (columns.skipped_count, columns.scale_falls) == (50_000, 49_999)


def test_a_second_look_reads_what_is_new(tmp_path: Path, monkeypatch: Patch) -> None:
    path = write(tmp_path / "m.jsonl", steps=3)
    reader = RunReader(path)
    assert reader.look().first.columns.steps == 3
    parse = mock.Mock(wraps=reader_module.parse_line)
    monkeypatch.setattr(reader_module, "parse_line", parse)
    four, five = json.dumps(line(4)), json.dumps(line(5))
    for text, steps in ((f"{four}\n{five[:30]}", 4), (f"{five[30:]}\n", 5)):
        with path.open("a") as file:
            file.write(text)
        run = reader.look()
        assert (run.first.columns.steps, run.bad_lines, parse.call_count) == (steps, 0, steps - 3)
    assert read_run(path).first.columns.table() == run.first.columns.table()
    path.unlink()  # another run has taken its place
    write(path, steps=2)
    assert reader.look().first.columns.steps == 2
    path.write_text(json.dumps(line(1)) + "\n")  # or begins the file anew
    assert reader.look().first.columns.steps == 1


def test_bad_lines_are_counted_not_fatal(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl")
    with path.open("a") as file:
        file.write('{"step": 11, "loss"\n[1]\n{"step": "x"}\n\n{"step": 12, "lo')
    run = read_run(path)
    assert (run.first.columns.steps, run.bad_lines) == (10, 4)
    file = MetricsFile(path, 0, 2, RUN)  # a run that goes on begins a line of its own
    file(line(11))
    assert read_run(path).first.columns.steps == 11


def test_ranks_that_are_mixed_in_a_file_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    lines = [line(step, rank=rank, loss=rank + 0.5) for step in (1, 2) for rank in (1, 0)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines) + "[1]\ngarbage\n")
    run = read_run(path)
    assert [run.ranks[rank].columns.steps for rank in (0, 1)] == [2, 2]
    found = latest(path)
    assert {rank: line["step"] for rank, line in found.lines.items()} == {0: 2, 1: 2}
    assert monitor_main([str(path), "--csv", str(tmp_path)]) == 0  # it gets those of the first
    rows = (tmp_path / "m" / "Train_Samples_train_loss.csv").read_text().split()
    assert rows == ["step,train_loss", "8,1.5", "16,1.5"]


def test_each_ranks_last_step_is_a_row(tmp_path: Path, capsys: Capture) -> None:
    figures = {"tokens_per_s": 12345.6, "rss_bytes": 3 << 30}
    path = write(tmp_path / "m.jsonl", steps=2000, **figures)
    write(path, rank=1, steps=1999)
    with path.open("a") as file:
        file.write('{"step": 2001, "lo')
    assert top_main([str(path)]) == 0
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert title == f"2 ranks: {path}"
    shown = {"rank", "step", "loss", "compute", "comm", "tokens/s", "memory", "ago"}
    assert shown <= set(head.split())
    assert [row.split()[:2] for row in rows] == [["0", "2000"], ["1", "1999"]]
    assert {"85.0", "5.0", "12.35k", "3G"} <= set(rows[0].split())
    with pytest.raises(SystemExit):
        top_main([str(path), "--interval", "0"])


def test_in_a_terminal_top_follows_the_run_to_its_end(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", steps=1)
    terminal = Terminal([ZERORUN, "top", path, "--interval", "0.1"], tmp_path, environment())
    terminal.read_until("1 rank")
    with path.open("a") as file:
        file.write('{"step": 7, "loss": 0.5}\n{"param_hash": "0"}\n')
    assert terminal.wait() == 0
    assert "1 rank, ended" in terminal.text
    assert terminal.text.count("\x1b[H") > 1


@pytest.mark.skipif("ZERORUN_BROWSER" not in os.environ, reason="ZERORUN_BROWSER names no browser")
@each("width", 390, 1600)
@each("scheme", "light", "dark")
def test_a_browser_draws_every_chart(tmp_path: Path, width: int, scheme: str) -> None:
    path = write(tmp_path / "m.jsonl", steps=3000)
    write(path, rank=1, steps=3000)
    page, trace = tmp_path / "report.html", write_trace(tmp_path / "trace.json")
    assert main([str(path), "--trace", str(trace), "-o", str(page)]) == 0
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    shown = browse(tmp_path, page.as_uri(), width, *dark)
    charts = int(re.search(r'data-charts="(\d+)"', shown)[1])
    assert charts == shown.count("<canvas") == 8
    assert "12.5 %" in shown  # exposed


def test_a_folder_of_two_runs_is_an_error(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "data.jsonl").write_text('{"text": "of something else"}\n')
    write(tmp_path / "a.jsonl")
    assert top_main([str(tmp_path)]) == 0
    for name in ("b", "b.rank1"):
        write(tmp_path / f"{name}.jsonl")
    for tool, options in ((main, ["-o", str(tmp_path / "out")]), (top_main, [])):
        assert tool([str(tmp_path), *options]) == 2
        assert "metrics files of 2 runs, a.jsonl, b.jsonl; expected" in capsys.readouterr().err
