"""Environments of the programs that zerorun is measured beside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["deepspeed_environment"]

ROOT = Path(__file__).resolve().parent.parent
DEEPSPEED = "deepspeed==0.19.6"


def deepspeed_environment() -> str:
    """A virtual environment with DeepSpeed, on top of this one's packages; made when missing."""
    environment = ROOT / "build" / "peers"
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        folder = next((environment / "lib").glob("python*/site-packages"))
        own = Path(__import__("torch").__file__).parent.parent
        (folder / "this.pth").write_text(f"{own}\n")
        subprocess.run([python, "-m", "pip", "install", "--quiet", DEEPSPEED], check=True)
    return str(environment)
