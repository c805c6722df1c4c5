#!/usr/bin/env python3
"""A training step on two hosts with two CPU ranks each, over links of given rates.

    sudo .venv/bin/python bench/comm/steps.py [--deepspeed] [--links 10gbit 1gbit] [--sides ddp]

The hosts are network namespaces, whose links `tc` shapes. Every side (zerorun's stages and what
saves traffic between hosts, PyTorch's DDP, FSDP2 and HSDP, DeepSpeed) trains the same model in a
job of its own, with one thread a rank; jobs take turns, and the least time of all rounds counts.
Bytes are those of the first host's interface, in the direction in which more went.

`exposed` is the step without what the side `alone` takes: forward, backward and the update of a
rank's part of the parameters, on all ranks at one time, sending nothing. `limit` is the time that
the link needs for the bytes, and `ratio` what is exposed over it: wanted at 1.3 or less. `plain` is
the time in which the four ranks send the same bytes by plain sockets and do nothing else, the side
`sockets`: on a fast link it is what the cores need for the kernel's part. A side that does not run
here says why. `--deepspeed` installs DeepSpeed into build/peers, without which it is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import BUILD, SHAPES, deepspeed_environment
from host_namespaces import Hosts, rank_environment, why_not
from step_sides import SIDES, UNSHAPED, rate_of

HERE = Path(__file__).resolve().parent
HOSTS, RANKS_PER_HOST = 2, 2
WORLD = HOSTS * RANKS_PER_HOST
MEASURES = ("alone", "sockets")  # what the sides are compared with
LONGEST = 1800  # seconds of one job


class FailedError(Exception):
    """A side's job ended with an error."""


def environment_of(side: str, hosts: Hosts, rank: int, port: int) -> dict[str, str]:
    variables = rank_environment(hosts, rank, WORLD, RANKS_PER_HOST, port)
    variables |= {"GLOO_SOCKET_IFNAME": "eth0", "ZERORUN_COMPAT": "0", "DS_ACCELERATOR": "cpu"}
    if side.startswith("zerorun"):
        variables["PYTHONPATH"] = str(BUILD / "python")
    return variables


def last_words(text: str) -> str:
    """The last line of a traceback that says something."""
    lines = [line.strip() for line in text.splitlines() if "Error" in line]
    return (lines or text.splitlines() or ["no output"])[-1][:160]


def measure(side: str, options: argparse.Namespace, python: str, port: int) -> list[dict]:
    """The side's figures at each rate, from a job of its own. Raises FailedError."""
    command = [python, str(HERE / "step_sides.py"), side]
    command += ["--shape", options.shape, "--dtype", options.dtype]
    command += ["--links", *options.links]
    command += ["--steps", *(str(steps_at(link, options)) for link in options.links)]
    with (
        Hosts(HOSTS) as hosts,
        tempfile.TemporaryFile("w+") as printed,
        tempfile.TemporaryFile("w+") as errors,
    ):
        ranks = [
            subprocess.Popen(
                hosts.command(rank // RANKS_PER_HOST, command),
                env=environment_of(side, hosts, rank, port),
                stdout=printed if rank == 0 else subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            for rank in range(WORLD)
        ]
        failed = wait(ranks)
        printed.seek(0)
        errors.seek(0)
        if failed:
            raise FailedError(failed if failed != "failed" else last_words(errors.read()))
        return [json.loads(line) for line in printed if line.startswith("{")]


def wait(ranks: list[subprocess.Popen]) -> str:
    """Until all have ended, or one has failed; then what went wrong."""
    deadline = time.monotonic() + LONGEST
    try:
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                time.sleep(2)  # the others say what they have met
                return "failed"
            if time.monotonic() > deadline:
                return f"took longer than {LONGEST} s"
            time.sleep(0.2)
        return "failed" if any(rank.returncode for rank in ranks) else ""
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def steps_at(link: str, options: argparse.Namespace) -> int:
    slow = link != UNSHAPED and rate_of(link) < rate_of("500mbit")
    return 1 if slow else options.steps


def keep_least(best: dict[tuple[str, str], dict], found: list[dict]) -> None:
    for figures in found:
        known = best.setdefault((figures["side"], figures["link"]), figures)
        known["ms"] = min(known["ms"], figures["ms"])


def table(best: dict[tuple[str, str], dict], link: str, problems: dict[str, str]) -> str:
    alone = min(figures["ms"] for (side, _), figures in best.items() if side == "alone")
    text = f"\n{link}: forward, backward and update alone {alone:.0f} ms\n"
    plain_ms = best["sockets", link]["ms"] / best["sockets", link]["mib"]
    text += f"{'':22}{'step ms':>9}{'MiB sent':>10}{'exposed':>9}{'limit ms':>10}{'ratio':>7}"
    text += f"{'plain ms':>10}{'ratio':>7}\n"
    for side, at in best:
        if at != link or side in MEASURES:
            continue
        figures = best[side, link]
        exposed = figures["ms"] - alone
        text += f"{side:22}{figures['ms']:9.0f}{figures['mib']:10.1f}{exposed:9.0f}"
        limit = 0.0 if link == UNSHAPED else 1e3 * figures["mib"] * 2**20 / rate_of(link)
        for least in (limit, figures["mib"] * plain_ms):
            text += f"{least:10.0f}{exposed / least:7.2f}" if least else f"{'':17}"
        text += "\n"
    return text + "".join(f"{side:22} {problem}\n" for side, problem in problems.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deepspeed", action="store_true", help="install and measure DeepSpeed")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--links", nargs="+", default=[UNSHAPED, "10gbit", "1gbit", "100mbit"])
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--steps", type=int, default=3, help="at 500 Mbit/s and more, else 1")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--json", type=Path, help="add every figure to this file; earlier ones count, too"
    )
    options = parser.parse_args()
    if reason := why_not():
        print(f"cannot measure: {reason}", file=sys.stderr)
        return 3
    environment = deepspeed_environment() if options.deepspeed else ""
    sides = [s for s in options.sides if options.deepspeed or not s.startswith("deepspeed")]
    best: dict[tuple[str, str], dict] = {}
    if options.json and options.json.exists():
        keep_least(best, [json.loads(line) for line in options.json.read_text().splitlines()])
    problems: dict[str, str] = {}
    port = 29500
    for _ in range(options.rounds):
        known = [m for m in MEASURES if all((m, link) in best for link in options.links)]
        for side in dict.fromkeys([*(m for m in MEASURES if m not in known), *sides]):
            python = f"{environment}/bin/python" if side.startswith("deepspeed") else sys.executable
            port += 2
            try:
                found = measure(side, options, python, port)
            except FailedError as failure:
                problems[side] = str(failure)
                continue
            keep_least(best, found)
            if options.json:
                with options.json.open("a") as file:
                    file.writelines(json.dumps(figures) + "\n" for figures in found)
    for link in options.links:
        print(table(best, link, problems), end="", flush=True)
    return 1 if any(side.startswith("zerorun") for side in problems) else 0


if __name__ == "__main__":
    sys.exit(main())
