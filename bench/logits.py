"""Memory and time of a loss with all logits, and of zerorun.nn.linear_cross_entropy.

    python bench/logits.py [--tokens 32768] [--words 50257] [--width 768] [--chunk 1024] [--turns 3]
        [--kinds "all logits" "in pieces"]

Each turn runs both, one after the other, each in a process of its own whose peak of resident memory
counts from before the loss on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "build" / "release" / "python"))
import torch
import torch.nn.functional as F
from zerorun.nn import linear_cross_entropy

KINDS = ("all logits", "in pieces")


def measure(kind: str, options: argparse.Namespace, found: Any) -> None:
    """Puts the seconds of a forward and backward, and the bytes that they added."""
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    hidden = torch.randn(options.tokens, options.width, dtype=dtype, requires_grad=True)
    weight = torch.randn(options.words, options.width, dtype=dtype).mul_(0.02).requires_grad_()
    labels = torch.randint(0, options.words, (options.tokens,))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    begin = time.perf_counter()
    if kind == "all logits":
        loss = F.cross_entropy((hidden @ weight.T).float(), labels)
    else:
        loss = linear_cross_entropy(hidden, weight, labels, chunk=options.chunk)
    loss.backward()
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    found.put((seconds, peak - before, loss.item()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, value in (("tokens", 32768), ("words", 50257), ("width", 768)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--chunk", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    found: dict[str, list[tuple[float, int, float]]] = {kind: [] for kind in options.kinds}
    for _ in range(options.turns):
        for kind, results in found.items():
            queue = context.Queue()
            process = context.Process(target=measure, args=(kind, options, queue))
            process.start()
            results.append(queue.get())
            process.join()
    for kind, results in found.items():
        seconds, peaks, losses = zip(*results, strict=True)
        print(
            f"{kind:10}  {statistics.median(seconds):7.2f} s  {max(peaks) / 2**20:7.0f} MiB  "
            f"loss {losses[0]:.6f}"
        )


if __name__ == "__main__":
    main()
