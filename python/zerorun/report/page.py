"""The page: one file with its figures, its program and its style inside; or served."""

import html as escape
import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from zerorun import _C
from zerorun.metrics.files import is_figure, plain
from zerorun.report.reader import TIMES, Run

_ASSETS = Path(__file__).parent / "assets"


def data_of(runs: Sequence[Run], live: bool = False) -> dict[str, Any]:
    """The contents of the page."""
    return {"live": live, "version": _C.__version__, "runs": [plain(_run(run)) for run in runs]}


def _run(run: Run) -> dict[str, Any]:
    columns, environment = run.first.columns, run.about.get("environment")
    return {
        "name": run.name,
        "steps": columns.steps,
        "columns": columns.table(),
        "skipped": columns.skipped,
        "breakdown": breakdown(run),
        "findings": findings(run),
        "collectives": run.first.collectives,
        "ranks": [
            {
                "rank": rank,
                "memory": figures.memory,
                "peak_rss": figures.peak_rss,
                "model_state": figures.columns.mean("model_state_bytes"),
                "step_ms": figures.columns.mean("step_ms", 2),
                "comm_ms": figures.columns.mean("comm_ms", 2),
            }
            for rank, figures in sorted(run.ranks.items())
        ],
        "world_size": run.world_size,
        "plan": _figures(run.about.get("plan")),
        "limits": _figures(run.about.get("limits")),
        "parameters": run.about.get("parameters"),
        "environment": environment if isinstance(environment, dict) else {},
        "config": run.settings,
        "param_hash": run.param_hash,
        "timeline": run.timeline,
    }


def _figures(given: object) -> dict[str, float]:
    found = given if isinstance(given, dict) else {}
    return {str(name): value for name, value in found.items() if is_figure(value)}


def html(runs: Sequence[Run], live: bool = False) -> str:
    """The page of some runs. `live`: it asks its server for news."""
    data = json.dumps(data_of(runs, live), separators=(",", ":"), allow_nan=False)
    parts = {
        "TITLE": escape.escape(", ".join(run.name for run in runs)),
        "STYLE": _asset("uplot.min.css") + _asset("page.css"),
        "UPLOT": _asset("uplot.iife.min.js"),
        "PROGRAM": _asset("page.js"),
        # Nothing in the data can end the script that holds it.
        "DATA": data.replace("<", "\\u003c").replace("\u2028", "\\u2028"),
    }
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


# --- for browsers of this machine ---

_ADDRESS = "127.0.0.1"


class PageServer:
    """Serves `page()` and `data()` on the loopback address to who knows the token in `url`.

    `port` 0: a free one. IoError for a port that is taken.
    """

    def __init__(
        self, page: Callable[[], str], data: Callable[[], dict[str, Any]], port: int = 0
    ) -> None:
        self._page, self._data = page, data
        self._token = secrets.token_urlsafe(24)
        try:
            self._server = ThreadingHTTPServer((_ADDRESS, port), self._handler())
        except (OSError, OverflowError) as error:
            raise _C.IoError(
                f"cannot serve on {_ADDRESS}:{port}: {error}; give another --port, or "
                "none for a free one"
            ) from error
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"http://{_ADDRESS}:{self.port}/?token={self._token}"

    def run(self) -> None:
        """Serves until :meth:`close`, or an exception as KeyboardInterrupt."""
        try:
            self._server.serve_forever(poll_interval=0.2)
        finally:
            self._server.server_close()

    def close(self) -> None:
        self._server.shutdown()

    def answer(self, path: str, host: str | None) -> tuple[int, str, str]:
        """(status, type, text). `host`: the request's, which a page of another site that points its
        name here cannot forge."""
        parts = urlsplit(path)
        token = parse_qs(parts.query).get("token", [""])[0]
        if host not in {f"{_ADDRESS}:{self.port}", f"localhost:{self.port}"}:
            return 403, "text/plain", "this server answers to the loopback address only\n"
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return 403, "text/plain", "the address needs the token that the command printed\n"
        if parts.path == "/":
            return 200, "text/html", self._page()
        if parts.path == "/data.json":
            return 200, "application/json", json.dumps(self._data(), allow_nan=False)
        return 404, "text/plain", "there is / and /data.json\n"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    status, kind, text = owner.answer(self.path, self.headers.get("Host"))
                except (_C.Error, OSError) as error:  # the run's files may be gone
                    status, kind, text = 503, "text/plain", f"{error}\n"
                try:
                    self._send(status, kind, text.encode())
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the browser went away

            def _send(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("Referrer-Policy", "no-referrer")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Requests are not logged."""

        return Handler


# --- facts that a reader of the figures should know, and what to do about them ---

_WARM_UP = 2  # points at the beginning that are slower than the rest
_SLOWER = 0.10
_EXPOSED = 0.15
_WAITS = 0.15
_FALLS = 3


def findings(run: Run) -> list[str]:
    """Sentences about a run; empty where nothing is odd."""
    found = [] if run.straggler else [*_slow_ranks(run)]
    if run.straggler:
        found.append(
            f"R{run.straggler[1:]}, when the ranks' steps last showed a straggler, as they did in "
            f"{run.straggler_steps} of {run.first.columns.steps} steps: docs/slow.md says what to "
            "look at."
        )
    found += [*_exposed(run), *_skipped(run)]
    step, other = (_mean(run, min(run.ranks), name) for name in ("step_ms", "other_ms"))
    if step > 0.0 and other / step > _WAITS:
        found.append(
            f"{100 * other / step:.0f} % of a step is spent outside of the engine: loading data, "
            "logging, evaluation. More workers of the data loader, or fewer calls of .item(), help."
        )
    if run.world_size and len(run.ranks) < run.world_size:
        found.append(
            f"There are figures of {len(run.ranks)} of {run.world_size} ranks: the others' files "
            "lie on their hosts, or were not copied along."
        )
    if run.bad_lines:
        lines = "line is" if run.bad_lines == 1 else "lines are"
        found.append(
            f"{run.bad_lines} {lines} not a JSON object with a step: the file was cut, or "
            "something else wrote into it."
        )
    return found


def _mean(run: Run, rank: int, name: str) -> float:
    return run.ranks[rank].columns.mean(name, _WARM_UP) or 0.0


def _slow_ranks(run: Run) -> Iterator[str]:
    """Ranks end their steps together, so a slow one shows in the time that it computes itself."""
    own = {
        rank: _mean(run, rank, "fwd_bwd_ms")  # which has no communication in it
        or _mean(run, rank, "forward_ms")
        + _mean(run, rank, "backward_ms")
        - _mean(run, rank, "comm_ms")
        for rank in run.ranks
    }
    if len(own) < 2 or min(own.values()) <= 0.0:
        return
    least = min(own.values())
    for rank, value in sorted(own.items()):
        if value > least * (1.0 + _SLOWER):
            yield (
                f"Rank {rank} computes {100 * (value / least - 1):.0f} % longer in forward and "
                "backward than the fastest rank, and all wait for it: look at its cores, its GPU's "
                "clock and the lengths of its samples."
            )


def _exposed(run: Run) -> Iterator[str]:
    step = _mean(run, min(run.ranks), "step_ms")
    overlap = "" if run.setting("/zero_optimization/overlap_comm") else "overlap_comm, or "
    advice = {
        "reduce_ms": f"Reductions: set {overlap}a smaller reduce_bucket_size so that the "
        "first ones begin earlier; more accumulation steps reduce less often per sample.",
        "gather_ms": "Gathers: raise stage3_prefetch_bucket_size, or keep more parameters with "
        "stage3_param_persistence_threshold; stage 2 gathers once per step if it fits.",
        "offload_ms": "Offloading: a smaller ratio keeps more of the states on the device; more "
        "accumulation steps update less often per sample.",
    }
    for name, what in advice.items():
        part = _mean(run, min(run.ranks), name)
        if step > 0.0 and part / step > _EXPOSED:
            topic, _, rest = what.partition(": ")
            be = "is" if topic == "Offloading" else "are"
            yield f"{topic} {be} waited for in {100 * part / step:.0f} % of a step: {rest}"


def _skipped(run: Run) -> Iterator[str]:
    columns = run.first.columns
    if not columns.skipped:
        return
    scales, falls = columns.table().get("loss_scale", []), columns.scale_falls
    counts = f"{columns.skipped_count} of {columns.steps}"
    text = f"{counts} steps were skipped, as their gradient was not finite"
    if falls >= _FALLS:
        text += f"; the loss scale fell {falls} times. bf16 needs no loss scale"
    elif set(filter(None, scales)) <= {1.0}:
        text += ": training is not in fp16, so look at the data and the learning rate"
    yield text + "."


def breakdown(run: Run) -> dict[str, Any]:
    """Mean milliseconds of a step's parts, on the first rank: names for a reader."""
    columns = run.first.columns
    mean = {name: columns.mean(name, _WARM_UP) for name in TIMES}
    return {name: round(value, 3) for name, value in mean.items() if value is not None}
