#!/usr/bin/env python3
"""all_reduce between two hosts, beside Gloo's own algorithm on the same links.

    sudo python bench/comm/hosts.py build/release/bench/comm/bench_links

The hosts are network namespaces with a veth pair each. One rank per host: zerorun must reach 0.9 of
Gloo's rate; two ranks per host: 1.7 of it, as each byte crosses the link once per host instead of
once per rank. Prints a line of JSON for each, and ends with 1 when a ratio is missed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
from host_namespaces import Hosts, rank_environment, why_not

TARGETS = {1: 0.9, 2: 1.7}  # by ranks per host


def measure(program: str, ranks_per_host: int, options: list[str]) -> dict:
    with Hosts(2) as hosts, tempfile.TemporaryDirectory() as folder:
        world_size = 2 * ranks_per_host
        ranks = []
        for rank in range(world_size):
            host = rank // ranks_per_host
            command = [program, folder, hosts.address(host), *options]
            ranks.append(
                subprocess.Popen(
                    hosts.command(host, command),
                    env=rank_environment(hosts, rank, world_size, ranks_per_host),
                    stdout=subprocess.PIPE if rank == 0 else None,
                    text=True,
                )
            )
        printed = ranks[0].communicate()[0]
        if any(rank.wait() != 0 for rank in ranks):
            raise SystemExit("a rank failed")
        return json.loads(printed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="bench_links")
    parser.add_argument("--mib", default="64")
    parser.add_argument("--repeats", default="10")
    arguments = parser.parse_args()
    reason = why_not()
    if reason is not None:
        raise SystemExit(f"cannot measure: {reason}")
    missed = 0
    for ranks_per_host, target in TARGETS.items():
        result = measure(
            arguments.program,
            ranks_per_host,
            ["--mib", arguments.mib, "--repeats", arguments.repeats],
        )
        print(json.dumps({**result, "target": target}), flush=True)
        missed += result["ratio"] < target
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
