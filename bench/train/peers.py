#!/usr/bin/env python3
"""Training steps against Hugging Face's GPT-2 in PyTorch eager, and what a step adds to the model.

    python bench/train/peers.py build/release/bench/train/bench_train

Both sides: one thread, 8 x 128 tokens of a vocabulary of bytes, AdamW, gradients clipped at 1. They
take turns, so that other work on the machine hits both; the least time of each counts. A CPU
without bf16 instructions makes PyTorch's bf16 a hundred times slower than its fp32, hence the small
model there. The second part compares two ranks' ZeRO steps with their forward and backward alone.
"""

import argparse
import json
import subprocess
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, SEQ_LEN = 8, 128
SHAPES = {"nano": (4, 128, 4), "mini": (6, 384, 6), "gpt2": (12, 768, 12)}
TARGET_RATE = 0.9
TARGET_STEP = {2: 1.3, 3: 1.4}


def make_torch_step(model: str, dtype: str):
    """A function that takes one step."""
    layers, width, heads = SHAPES[model]
    config = GPT2Config(
        vocab_size=256,
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    network = GPT2LMHeadModel(config).to(torch.bfloat16 if dtype == "bf16" else torch.float32)
    network.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=0.1)
    tokens = torch.arange(BATCH * SEQ_LEN).reshape(BATCH, SEQ_LEN) * 37 % 256

    def step() -> None:
        network(tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def least_seconds(step, repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def bench(program: str, *arguments: object) -> dict[str, dict]:
    """The program's rows by their names."""
    command = [program, *map(str, arguments)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {row["name"]: row for row in map(json.loads, output.splitlines())}


def compare_rate(program: str, model: str, dtype: str, turns: int, repeats: int) -> bool:
    step = make_torch_step(model, dtype)
    theirs = ours = float("inf")
    for _ in range(turns):
        theirs = min(theirs, least_seconds(step, repeats))
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
