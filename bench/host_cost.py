#!/usr/bin/env python3
"""What stage 3 costs the host: Python calls, hooked modules, and processor time beside PyTorch's.

    zerorun --accelerator cpu --num_gpus 2 --no_local_rank bench/host_cost.py [--shared]

A Llama of 32 layers of width 32, two ranks of one thread, with memory of each rank's own as GPUs
have it; `--shared`: full parameters in the host's shared memory. Calls are of functions in zerorun
and in PyTorch's compiler, of one micro-step (forward, backward, step). Times are processor time of
one forward of one token, and of `generate()` per token; the least of all rounds count, and both
sides take turns.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

sys.path.append(str(Path(__file__).resolve().parents[1] / "build" / "release" / "python"))
import torch
import zerorun
from harness import least_ms
from torch import nn

LAYERS, WIDTH, TOKENS, GENERATED = 32, 32, 16, 8
OURS = str(Path(zerorun.__file__).parent)


def make_model() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64, use_cache=True,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def came_from_us(frame: FrameType) -> bool:
    """PyTorch's own checkpoint() passes through its compiler too."""
    while frame.f_back is not None and "/torch/_dynamo/" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(OURS)


def count_calls(step: Callable[[], object]) -> Counter[str]:
    """Calls of Python functions in zerorun and in PyTorch's compiler during `step`."""
    found: Counter[str] = Counter()

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            file = frame.f_code.co_filename
            if file.startswith(OURS):
                found["zerorun"] += 1
            elif "/torch/_dynamo/" in file and came_from_us(frame):
                found["dynamo"] += 1

    sys.setprofile(see)
    try:
        step()
    finally:
        sys.setprofile(None)
    return found


def train_step(engine: zerorun.ZeroEngine) -> Callable[[], None]:
    tokens = (torch.arange(TOKENS).view(1, TOKENS) * 37 % 256).to(engine.device)

    def step() -> None:
        engine.backward(engine(tokens, labels=tokens).loss)
        engine.step()

    return step


def generate(model: nn.Module, tokens: torch.Tensor) -> None:
    model.generate(tokens, max_new_tokens=GENERATED, do_sample=False, use_cache=True)


def compare(model: nn.Module, plain: nn.Module, rounds: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of the engine's model and of the plain one."""
    token = torch.ones(1, 1, dtype=torch.int64)
    cases = {
        "forward": lambda m: m(token, use_cache=False),
        "generate": lambda m: generate(m, token),
    }
    best: dict[str, tuple[float, float]] = {}
    with torch.no_grad():
        for _ in range(rounds):
            for name, call in cases.items():
                found = tuple(
                    least_ms(lambda c=call, m=m: c(m), 1, 5, time.process_time)
                    for m in (model, plain)
                )
                best[name] = tuple(map(min, found, best.get(name, found)))
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shared", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, plain = make_model(), make_model()
    plain.eval()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zerorun": {"share_parameters": options.shared},
    }
    engine, *_ = zerorun.initialize(model, config=config)
    step = train_step(engine)
    calls = {}
    for recomputed in (False, True):
        if recomputed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        for _ in range(3):
            step()
        calls[recomputed] = count_calls(step)
    model.gradient_checkpointing_disable()
    hooked = sum(bool(m._forward_pre_hooks) for m in model.modules())
    model.eval()
    best = compare(model, plain, options.rounds)
    engine.destroy()
    if os.environ.get("RANK", "0") == "0":
        print(f"hooked modules {hooked}, units {len(engine._layout.units)}")
        for recomputed, found in calls.items():
            name = "with activation checkpointing" if recomputed else "micro-step"
            print(f"{name}: {found['zerorun']} calls, {found['dynamo']} in dynamo")
        for name, (ours, theirs) in best.items():
            print(f"{name}: {ours:.2f} ms, PyTorch {theirs:.2f} ms, ratio {ours / theirs:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
