"""What the Python benchmarks share: times, models, and sides that take turns in processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
sys.path += [str(BUILD / "python"), str(ROOT / "tests" / "python")]

DEEPSPEED = "deepspeed==0.19.6"
SHAPES = {"gpt2": (12, 768, 12), "mini": (6, 384, 6), "nano": (4, 128, 4)}


def least_ms(
    call: Callable[[], object],
    warmup: int,
    steps: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The least time of `steps` calls, after `warmup` calls that do not count."""
    taken = []
    for index in range(warmup + steps):
        begin = clock()
        call()
        if index >= warmup:
            taken.append(clock() - begin)
    return min(taken) * 1e3


def rows_of(name: str, command: Iterable[object], variables: dict[str, str]) -> list[dict]:
    """The lines of JSON that a command prints. Exits with its words if it fails."""
    job = subprocess.run(
        list(map(str, command)), env=os.environ | variables, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if job.returncode != 0:
        sys.exit(f"{name} failed with exit code {job.returncode}:\n{job.stderr[-3000:]}")
    return [json.loads(line) for line in job.stdout.splitlines() if line.startswith("{")]


def keep_least(best: dict[Any, dict[str, float]], name: Any, found: dict[str, float]) -> None:
    """Of each figure; the sides take turns, so that other work on the machine hits all of them."""
    known = best.setdefault(name, found)
    best[name] = {key: min(known[key], value) for key, value in found.items()}


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


class Targets:
    """Prints figures, and remembers whether all that have a target reach it."""

    def __init__(self, targets: dict[str, float]) -> None:
        self.targets = targets
        self.missed = False

    def show(self, text: str, value: float, name: str, most: bool = False) -> None:
        target = self.targets[name]
        missed = value > target if most else value < target
        self.missed |= missed
        bound = f"{'at most' if most else 'at least'} {target}"
        verdict = "MISSED" if missed else "met"
        print(f"{text}: {value:.2f} (target {bound}: {verdict})", flush=True)


def make_gpt2(shape: str, dtype: str, **settings: Any) -> Any:
    """Hugging Face's, with a vocabulary of bytes."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads = SHAPES[shape]
    config = GPT2Config(
        vocab_size=256, n_layer=layers, n_embd=width, n_head=heads, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False, bos_token_id=None, eos_token_id=None, **settings,
    )  # fmt: skip
    return GPT2LMHeadModel(config).to(torch.bfloat16 if dtype == "bf16" else torch.float32)


def torch_step(model: Any, forward: Callable[[], Any], weight_decay: float) -> Callable[[], None]:
    """A step of an ordinary loop around `forward`, which returns the loss."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=weight_decay)

    def step() -> None:
        forward().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if hasattr(norm, "full_tensor"):  # FSDP2's
            norm.full_tensor()
        optimizer.step()
        optimizer.zero_grad()

    return step
