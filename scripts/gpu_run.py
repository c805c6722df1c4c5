"""Runs steps of gpu_steps.py on this machine's GPU, and writes a report that survives a kill."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

from gpu_pack import (
    ARCHIVE,
    BUILD,
    PackError,
    commit_here,
    make_pack,
    missing_programs,
    working_python,
)
from gpu_steps import Step, Table

PROGRAM = Path(sys.argv[0]).name
WORK = Path("build/gpu")  # logs and unpacked programs; results are elsewhere
LOGS = WORK / "logs"
TOOLS = ("/usr/local/nvidia/bin", "/usr/local/cuda/bin", "/opt/cuda/bin")
KEPT_OF_LOG = 1 << 20  # bytes
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
NO_GPU, TARGET_MISSED = 3, 4  # exit codes of programs and benchmarks
SAYS_NO_GPU = (
    "no /dev/nvidia|driver is not installed|no NVIDIA driver|no GPU is visible|sees no GPU"
)
EXIT_CODES = (
    "Exit code: 0 if nothing failed, 1 if something did, 2 for a wrong call, 3 without a GPU, "
    "128 + the signal's number after a signal."
)

SEES_GPU = "import torch, sys; sys.exit(not torch.cuda.is_available())"
NVIDIA_LIBRARIES = """import glob, importlib.util
found = importlib.util.find_spec("nvidia")  # wherever this Python has it, as its PyTorch
folders = found.submodule_search_locations if found else ()
print(":".join(lib for folder in folders for lib in glob.glob(folder + "/*/lib")))"""
# While nobody has a context on a GPU, its driver may take seconds to wake it up for each process.
HOLD_CONTEXT = """import ctypes, time
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
results = cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
print("cuInit and cuDevicePrimaryCtxRetain returned", *results, flush=True)
time.sleep(86400)"""


class Interrupted(BaseException):
    """By a signal, whose number it has."""


def on_signal(number: int, _frame: object) -> None:
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


class Report:
    """report.md and logs.tar.gz in a folder, both as new as the last verdict."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.lock = folder, threading.Lock()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "report.md").write_text("")

    def say(self, *lines: str) -> None:
        with self.lock:
            print(*lines, sep="\n", flush=True)
            if self.folder is None:
                return
            with (self.folder / "report.md").open("a") as file:
                print(*lines, sep="\n", file=file)
            try:
                self.archive(self.folder / "logs.tar.gz")
            except OSError as error:  # a program has just removed a file; the next one has it
                print(f"{PROGRAM}: logs.tar.gz is not new: {error}", flush=True)

    def archive(self, target: Path) -> None:
        new = target.with_suffix(".new")
        with tarfile.open(new, "w:gz", compresslevel=6) as tar:
            for path in filter(Path.is_file, sorted(LOGS.iterdir())):
                tar.add(path, path.name)
        new.replace(target)

    def read_log(self, log: Path) -> str:
        """A log that is too long to be sent anywhere loses its middle."""
        with self.lock:
            text = log.read_bytes()
            if len(text) > KEPT_OF_LOG:
                text = text[: KEPT_OF_LOG // 2] + b"\n[...]\n" + text[-KEPT_OF_LOG // 2 :]
                log.write_bytes(text)
        return text.decode(errors="replace")


def indented(lines: Sequence[str]) -> list[str]:
    return [f"      {line[:200]}" for line in lines]


def reasons(lines: Sequence[str]) -> list[str]:
    """Why the first tests failed, of a suite that lists at its end which did; and the end."""
    first = [at for at, line in enumerate(lines[:-15]) if line.endswith(": Failure")][:3]
    return [line for at in first for line in lines[at : at + 6]] + list(lines[-15:])


class Run:
    """One call. Steps run in threads, those on the CPU beside the others: a signal interrupts the
    main thread, which only waits, and never between the start of a program and its entry here."""

    def __init__(self, table: Table, report: Report, options: argparse.Namespace) -> None:
        self.table, self.report, self.options = table, report, options
        self.end = float("inf")
        self.failed = self.no_gpu = self.interrupted = False
        self.left_out: list[str] = []
        self.running: dict[str, subprocess.Popen[bytes] | None] = {}
        self.started: dict[str, Future[None]] = {}
        self.threads = {on_cpu: ThreadPoolExecutor(1) for on_cpu in (True, False)}

    def all(self, names: Iterable[str]) -> None:
        """The steps, also of parts; before each those that it needs."""
        steps = [
            self.table.steps[name]
            for given in names
            for name in self.table.parts.get(given, [given])
        ]
        self.those([self.table.steps[name] for step in steps for name in [*step.needs, step.name]])

    def those(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if step.name not in self.started:
                self.started[step.name] = self.threads[step.on_cpu].submit(self.one, step)
        # A signal that comes just before a wait begins does not end it, so none is long.
        while wait(self.started.values(), timeout=1).not_done:
            pass
        for started in self.started.values():
            started.result()

    def one(self, step: Step) -> None:
        if self.options.dry_run:
            self.report.say(f"- would run: {step.name}: `{step.command}`")
            return
        for name in step.needs:
            self.started[name].result()
        begin = time.monotonic()
        limit = min(step.limit, self.end - begin)
        if limit < 1:
            self.leave_out(step, "the time was over (--seconds N)")
        if limit < 1 or self.interrupted:
            return
        status = self.status_of(step, limit)
        took = time.monotonic() - begin
        if not self.interrupted:
            by_limit = "" if took < limit - 0.2 else "cut short" if limit < step.limit else "hung"
            self.judge(step, status, f"{took:.0f} s", by_limit)

    def status_of(self, step: Step, limit: float) -> int:
        """`timeout` ends all processes of a command, also after this program was killed."""
        bash = ["timeout", "-k", "5", f"{limit:.3f}", "bash", "-c", step.command]
        self.running[step.name] = None
        with (LOGS / f"{step.name}.log").open("wb") as log:
            job = subprocess.Popen(bash, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.running[step.name] = job
        if self.interrupted:
            job.terminate()
        try:
            status = job.wait(limit + 10)
        except subprocess.TimeoutExpired:  # not even SIGKILL ends what hangs in a driver
            status = 124
        del self.running[step.name]
        return status

    def judge(self, step: Step, status: int, took: str, by_limit: str) -> None:
        text = self.report.read_log(LOGS / f"{step.name}.log")
        # NCCL says more about its start than a report can show.
        lines = [line for line in text.splitlines() if " NCCL INFO " not in line]
        last = indented(lines[-step.shows :] if step.shows else [])
        if status == 0:
            self.report.say(f"- pass: {step.name} ({took})", *last)
        elif status == TARGET_MISSED:
            self.report.say(f"- below a target: {step.name} ({took})", *last)
        elif self.options.trial and (found := re.search(f".*({SAYS_NO_GPU}).*", text)):
            self.no_gpu = True
            self.report.say(f"- no GPU: {step.name} ({took}): {found[0][:200]}")
        elif refusal := re.search(f".*({step.refused}).*", text):
            self.leave_out(step, refusal[0])
        elif by_limit == "cut short":
            self.leave_out(step, f"not at its end after {took}, when the time was over", *last)
        else:
            self.failed = True
            why = f"hung: more than {step.limit} s" if by_limit else f"exit {status}, {took}"
            self.report.say(
                f"- FAIL: {step.name} ({why}); `{step.command}`:", *indented(reasons(lines))
            )

    def leave_out(self, step: Step, why: str, *lines: str) -> None:
        self.left_out.append(step.name)
        self.report.say(f"- not run: {step.name}: {why[:200]}", *lines)

    def stop(self) -> None:
        self.interrupted = True
        names = ", ".join(list(self.running))
        for job in filter(None, list(self.running.values())):
            job.terminate()  # timeout passes it on to all processes of its command
        for threads in self.threads.values():
            threads.shutdown(cancel_futures=True)
        self.report.say("", f"Interrupted{' in: ' if names else ''}{names}.")

    def conclude(self, took: float) -> int:
        verdict = "Something failed." if self.failed else "Everything that was run passed."
        if self.options.dry_run:
            verdict = "Nothing was run."
        left_out = [f"Not run: {', '.join(self.left_out)}."] if self.left_out else []
        self.report.say("", verdict, *left_out, f"It took {took:.0f} s.")
        return 1 if self.failed else NO_GPU if self.no_gpu else 0


# --- the machine, and the command line ---


def count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text}, expected a whole number from 1 on")
    return int(text)


def folder(text: str) -> Path:
    return Path(text).absolute()


def parse(about: str, names: Sequence[str], most: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=about, epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="parts or steps, instead of all")
    add("--prebuilt", type=folder, metavar="DIR", help="use what --pack wrote there; build nothing")
    add("--out", type=folder, metavar="DIR", help=f"of the results (default: build/{PROGRAM}...)")
    add("--seconds", type=count, default=most, help=f"for all steps (default: {most})")
    add("--python", metavar="PYTHON", help="the one with PyTorch: a name or a path")
    add("--dry-run", action="store_true", help="print the commands and run none")
    add("--trial", action="store_true", help="go on without a GPU")
    add("--pack", type=folder, metavar="DIR", help="pack build/release, with a module for PYTHON")
    add("--for", dest="capability", default="9.0", help="the GPU that is packed for (default: 9.0)")
    options = parser.parse_intermixed_args()
    os.chdir(Path(__file__).resolve().parents[1])
    table = Table("", "", "")
    known = [*table.parts, *table.steps]
    for name in options.names:
        if name not in known:
            parser.error(f"got {name}, expected some of {' '.join(known)}")
    options.out = options.out or Path("build", "_".join([PROGRAM, *options.names])[:200])
    options.names = options.names or names or table.parts
    options.python = choose_python(options)
    if options.python is None:
        parser.error("--python: expected a Python that runs, on the path or among those of pyenv")
    return options


def choose_python(options: argparse.Namespace) -> str | None:
    if options.python:
        return working_python(options.python)
    own = ".venv/bin/python"  # `./dev` gives it a PyTorch without CUDA
    if options.prebuilt or not Path(own).exists():
        return sys.executable
    sees_gpu = [sys.executable, "-c", SEES_GPU]
    return (
        own if options.pack or subprocess.call(sees_gpu, stderr=subprocess.DEVNULL) else sees_gpu[0]
    )


def find_gpus() -> str:
    """Name, compute capability and driver of each GPU, one a line."""
    command = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=60
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def unpack(options: argparse.Namespace, programs: Path) -> str:
    """Also finds the packed libraries, and NVIDIA's of the machine's PyTorch; the packed commit."""
    programs.mkdir()
    subprocess.run(["tar", "-xzf", options.prebuilt / ARCHIVE, "-C", programs], check=True)
    if missing := missing_programs(programs):
        raise PackError(f"missing in {options.prebuilt / ARCHIVE}: {' '.join(missing)}")
    nvidia = subprocess.check_output([options.python, "-c", NVIDIA_LIBRARIES], text=True).strip()
    folders = [str(programs.absolute() / "system"), nvidia, os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    return (programs / "commit").read_text().strip()


def hold_context(options: argparse.Namespace) -> subprocess.Popen[bytes]:
    command = ["timeout", str(options.seconds), options.python, "-c", HOLD_CONTEXT]
    with (LOGS / "context.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def run_steps(options: argparse.Namespace, gpus: str) -> int:
    begin = time.monotonic()
    programs = WORK / "programs" if options.prebuilt else BUILD
    table = Table(str(programs), shlex.quote(options.python), str(LOGS))
    if not options.dry_run:
        shutil.rmtree(WORK, ignore_errors=True)
        (LOGS / "nvme").mkdir(parents=True)
        for path, text in table.configs.items():
            Path(path).write_text(text)
    commit = commit_here()
    if options.prebuilt and not options.dry_run:
        commit = unpack(options, programs)
    run = Run(table, Report(None if options.dry_run else options.out), options)
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    run.report.say(f"# {PROGRAM}, {date}, commit {commit}", "", gpus or "no GPU here", "")
    try:
        with ExitStack() as stack:
            if not options.prebuilt:
                capability = gpus.split(", ")[1] if gpus else options.capability
                variable = f"ZERORUN_CUDA_ARCHITECTURES={capability.replace('.', '')}"
                run.those([Step("build", 3600, f"{variable} ./dev build")])
                begin = time.monotonic()
            if not options.dry_run:
                stack.callback(hold_context(options).terminate)
            if not run.failed:
                run.end = begin + options.seconds
                run.all(options.names)
    except Interrupted:
        run.stop()
        raise
    return run.conclude(time.monotonic() - begin)


def main(about: str, names: Sequence[str], most: int) -> int:
    """Runs what the command line names, else `names`, in at most so many seconds."""
    options = parse(about, names, most)
    os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *TOOLS])
    os.environ |= {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    gpus = find_gpus()
    if not (gpus or options.pack or options.dry_run or options.trial):
        print(f"{PROGRAM}: nvidia-smi finds no GPU, so nothing was run", file=sys.stderr)
        return NO_GPU
    for number in SIGNALS:
        signal.signal(number, on_signal)
    try:
        if options.pack:
            print(make_pack(options.pack, options.python, options.capability))
            return 0
        return run_steps(options, gpus)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    except (PackError, subprocess.CalledProcessError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
