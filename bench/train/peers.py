#!/usr/bin/env python3
"""Training steps against Hugging Face's GPT-2 in PyTorch eager, and what a step adds to the model.

    python bench/train/peers.py build/release/bench/train/bench_train

Both sides: one thread, 8 x 128 tokens of a vocabulary of bytes, AdamW, gradients clipped at 1. They
take turns, so that other work on the machine hits both; the least time of each counts. A CPU
without bf16 instructions makes PyTorch's bf16 a hundred times slower than its fp32, hence the small
model there. The second part compares two ranks' ZeRO steps with their forward and backward alone.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from harness import SHAPES, least_ms, make_gpt2, rows_of, torch_step

BATCH, SEQ_LEN = 8, 128
TARGET_RATE = 0.9
TARGET_STEP = {2: 1.3, 3: 1.4}


def bench(program: str, *arguments: object) -> dict[str, dict]:
    """The program's rows by their names."""
    return {row["name"]: row for row in rows_of("bench_train", [program, *arguments], {})}


def compare_rate(program: str, model: str, dtype: str, turns: int, repeats: int) -> bool:
    network = make_gpt2(model, dtype).train()
    inputs = torch.arange(BATCH * SEQ_LEN).reshape(BATCH, SEQ_LEN) * 37 % 256
    step = torch_step(network, lambda: network(inputs, labels=inputs).loss, 0.1)
    theirs = ours = float("inf")
    for _ in range(turns):
        theirs = min(theirs, least_ms(step, 0, repeats) / 1e3)
        rows = bench(
            program,
            *("--ranks", 1, "--stages", 0, "--rounds", repeats, "--model", model),
            *("--dtype", dtype, "--batch", BATCH, "--seq_len", SEQ_LEN),
        )
        ours = min(ours, rows["step at stage 0"]["ms_min"] / 1e3)
    tokens = BATCH * SEQ_LEN
    ratio = theirs / ours
    print(
        f"{model} {dtype}: zerorun {tokens / ours:.0f} tokens/s, PyTorch {tokens / theirs:.0f} "
        f"tokens/s, ratio {ratio:.2f} (target {TARGET_RATE})",
        flush=True,
    )
    return ratio >= TARGET_RATE


def compare_step(program: str, rounds: int) -> bool:
    rows = bench(program, "--ranks", 2, "--model", "gpt2", "--stages", 2, 3, "--rounds", rounds)
    alone = rows["forward and backward"]["ms_min"]
    good = True
    for stage, target in TARGET_STEP.items():
        row = rows[f"step at stage {stage}"]
        print(
            f"gpt2 bf16, 2 ranks x 1 x 64: step at stage {stage} {row['ms_min']:.0f} ms, forward "
            f"and backward alone {alone:.0f} ms, ratio {row['ratio']:.2f} (target {target})",
            flush=True,
        )
        good &= row["ratio"] <= target
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the built bench_train")
    parser.add_argument("--fp32", choices=SHAPES, default="gpt2", help="model of the fp32 turns")
    parser.add_argument("--bf16", choices=SHAPES, default="nano", help="model of the bf16 turns")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3, help="steps of each side in a turn")
    parser.add_argument("--rounds", type=int, default=15, help="of the second part")
    options = parser.parse_args()
    torch.set_num_threads(1)
    good = compare_rate(options.program, options.fp32, "fp32", options.turns, options.repeats)
    good &= compare_rate(options.program, options.bf16, "bf16", options.turns, options.repeats)
    good &= compare_step(options.program, options.rounds)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
