"""Starts a script of this folder as ranks that share this machine's GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["build_named", "run_ranks", "tell"]

ROOT = Path(__file__).resolve().parents[2]


def run_ranks(build: Path, ranks: int, script: str, *arguments: str, **variables: str) -> bool:
    """True if the job of the launcher and the package in `build` ends with exit code 0."""
    path = os.pathsep.join([str(build / "python"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "ZERORUN_SHARE_GPUS": "1"} | variables
    # This Python: its folder may have none of the names by which the launcher would find it.
    environment |= {"ZERORUN_PYTHON": sys.executable}
    command = [build / "bin" / "zerorun", "--num_gpus", str(ranks), "--no_local_rank"]
    job = subprocess.run([*command, script, *arguments], env=environment, check=False)
    return job.returncode == 0


def build_named(arguments: list[str]) -> Path:
    return Path(arguments[0] if arguments else ROOT / "build" / "release").resolve()


def tell(agrees: bool, what: str) -> int:
    """Prints it; how many failures it is."""
    print(f"{'ok' if agrees else 'DIFFERS'}: {what}", flush=True)
    return 0 if agrees else 1
