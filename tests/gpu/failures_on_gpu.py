#!/usr/bin/env python3
"""PyTorch models on this machine's GPU when something goes wrong.

    python tests/gpu/failures_on_gpu.py memory|gather [BUILD]

memory: a forward or backward that runs out of memory, at every stage, is forgotten by zero_grad(),
and training goes on with the losses that it has without. An engine that the GPU has no room for is
an error, and is made once there is room, memory that PyTorch keeps for later included.

gather: two ranks through NCCL at stage 3, of which one leaves a block out. Both have to end with an
error, none may hang.

BUILD: where the launcher and the package are, build/release of this checkout. Exits 0 when all is
so, 1 when something differs or fails, 3 without a GPU.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path += [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1] / "python")]
from ranks_on_gpu import build_named, run_ranks, tell
from tied_model import VOCABULARY, Model

TOO_MUCH = 1 << 50  # bytes
BOUND = 1e-4  # of losses: PyTorch adds the embedding's gradient in no fixed order
TIMEOUT = 20  # seconds of a collective


class Hog(torch.autograd.Function):
    """Asks for too much memory, in forward or backward."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, where: str) -> torch.Tensor:
        ctx.where = where
        if where == "forward":
            x.new_empty(TOO_MUCH, dtype=torch.uint8)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.where == "backward":
            gradient.new_empty(TOO_MUCH, dtype=torch.uint8)
        return gradient, None


class Troubled(Model):
    """Runs out of memory, or leaves a block out, in its second block."""

    trouble = ""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for index, block in enumerate(self.blocks):
            if index == 1 and self.trouble == "skip":
                continue
            x = block(x)
            if index == 1 and self.trouble:
                x = Hog.apply(x, self.trouble)
        return self.head(x)


def engine_of(stage: int, width: int = 64):
    import zerorun

    torch.manual_seed(0)
    model = Troubled(width=width)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zerorun": {"comm_timeout": TIMEOUT},
    }
    return zerorun.initialize(model, config=config)[0]


def loss_of(engine, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, VOCABULARY, (2, 17), generator=generator).to(engine.device)
    return F.cross_entropy(engine(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


def losses_with(trouble: str, stage: int) -> list[float]:
    engine, losses = engine_of(stage), []
    assert engine.device.type == "cuda", engine.device
    for step in range(4):
        if step == 2 and trouble:
            engine.module.trouble = trouble
            try:
                engine.backward(loss_of(engine, step))
            except RuntimeError as error:
                if "alloc" not in str(error):
                    raise
            else:
                raise AssertionError(f"{TOO_MUCH} bytes were there")
            engine.module.trouble = ""
            engine.zero_grad()
        loss = loss_of(engine, step)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.destroy()
    return losses


def check_recovery() -> int:
    failures = 0
    for stage in range(4):
        expected = losses_with("", stage)
        for trouble in ("forward", "backward"):
            losses = losses_with(trouble, stage)
            worst = max(abs(a / b - 1) for a, b in zip(losses, expected, strict=True))
            failures += tell(worst <= BOUND, f"stage {stage}, no memory in {trouble}: {worst:.1e}")
    return failures


def check_full_gpu() -> int:
    """Of a GPU that somebody fills up to 256 MiB, with an engine that takes about 1 GiB."""
    import zerorun

    width = 1920  # 3 blocks of 29.5 million elements
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - (256 << 20), dtype=torch.uint8, device="cuda")
    try:
        engine_of(2, width)
    except (zerorun.Error, RuntimeError) as error:
        tell(True, f"no room for an engine: {str(error).splitlines()[0][:160]}")
    else:
        return tell(False, "an engine was made where there is no room")
    del hog  # PyTorch keeps it
    engine = engine_of(2, width)
    loss = loss_of(engine, 0)
    engine.backward(loss)
    engine.step()
    finite = bool(torch.isfinite(loss))
    engine.destroy()
    return tell(finite, "an engine in what PyTorch kept")


def check_gather() -> int:
    import zerorun

    rank = int(os.environ["RANK"])
    engine = engine_of(3)
    begin = time.monotonic()
    try:
        for step in range(3):
            engine.module.trouble = "skip" if (rank, step) == (1, 1) else ""
            engine.backward(loss_of(engine, step))
            engine.step()
    except zerorun.Error as error:
        took = time.monotonic() - begin
        first = str(error).splitlines()[0][:200]
        return tell(took < 2 * TIMEOUT, f"rank {rank} after {took:.1f} s: {first}")
    return tell(False, f"rank {rank} met no error although rank 1 left a block out")


def check_rank(mode: str) -> int:
    torch.backends.cuda.matmul.allow_tf32 = False
    if mode == "gather":
        failures = check_gather()
    else:
        failures = check_recovery()
        failures += check_full_gpu() if torch.version.cuda is not None else 0
    sys.stdout.flush()
    os._exit(1 if failures else 0)  # nothing is left to be agreed on after a failed collective


def main() -> int:
    mode, *rest = sys.argv[1:] or [""]
    if mode not in {"memory", "gather"}:
        print(__doc__, file=sys.stderr)
        return 2
    if rest == ["rank"]:
        return check_rank(mode)
    if not torch.cuda.is_available():
        print("failures_on_gpu: PyTorch sees no GPU, so nothing was run", file=sys.stderr)
        return 3
    ranks, share = (2, "nccl") if mode == "gather" else (1, "1")
    ended = run_ranks(build_named(rest), ranks, __file__, mode, "rank", ZERORUN_SHARE_GPUS=share)
    return 0 if ended else 1


if __name__ == "__main__":
    # NCCL refuses two ranks on one GPU of a host: each gets a host name of its own.
    os.environ.setdefault("NCCL_HOSTID", f"rank-{os.environ.get('RANK', '')}")
    sys.exit(main())
