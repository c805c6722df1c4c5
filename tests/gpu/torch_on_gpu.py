#!/usr/bin/env python3
"""PyTorch models on this machine's GPU, against torch.optim.AdamW.

    python tests/gpu/torch_on_gpu.py [BUILD]

Stages 0 to 3 on one rank and on two that share the GPU (ZERORUN_SHARE_GPUS=1). BUILD: where the
launcher and the package are, build/release of this checkout. Exits 0 when all agree, 1 when
something differs or fails, 3 without a GPU.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path += [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1] / "python")]
from ranks_on_gpu import build_named, run_ranks, tell
from tied_model import VOCABULARY, Model

STEPS, BATCH = 2, 4
BOUND = {"fp32": 1e-4, "bf16": 3e-2}  # relative, of losses; in fp32 of the parameters' norms too


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Model(width=64)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def batches() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield torch.randint(0, VOCABULARY, (BATCH, 17), generator=generator)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1]).flatten(0, 1).float()
    return F.cross_entropy(logits, tokens[:, 1:].flatten())


def reference(device: torch.device) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and parameters of PyTorch alone, in fp32."""
    model, optimizer = make()
    model.to(device)
    losses = []
    for batch in batches():
        loss = loss_of(model, batch.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach() for name, value in model.named_parameters()}


def train(
    zero: dict[str, object], dtype: str, stream: AbstractContextManager[object]
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same under zerorun, with a save and a load of everything after the first batch."""
    import zerorun

    model, optimizer = make()
    config = {
        "train_micro_batch_size_per_gpu": BATCH // int(os.environ["WORLD_SIZE"]),
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage3_param_persistence_threshold": 0} | zero,
        "bf16": {"enabled": dtype == "bf16"},
        "zerorun": {"comm_timeout": 60},
    }
    engine, *_ = zerorun.initialize(model, optimizer, config=config)
    assert engine.device.type == "cuda", engine.device
    ranks, losses = engine.communicator, []
    folder = [tempfile.mkdtemp()] if ranks.rank == 0 else [""]
    torch.distributed.broadcast_object_list(folder)
    with stream:
        for batch in batches():
            loss = loss_of(engine, batch.chunk(ranks.world_size)[ranks.rank].to(engine.device))
            engine.backward(loss)
            engine.step()
            mean = loss.detach().float().reshape(1)
            ranks.all_reduce(mean)
            losses.append(mean.item() / ranks.world_size)
            if len(losses) == 1:
                engine.save_checkpoint(folder[0])
                engine.load_checkpoint(folder[0])
    get = zerorun.zero.safe_get_full_fp32_param
    values = {name: get(parameter) for name, parameter in model.named_parameters()}
    engine.destroy()
    return losses, values


def check_rank() -> int:
    """All settings on this rank; how many differ."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.distributed.init_process_group("gloo")
    device = torch.device("cuda", torch.cuda.current_device())
    expected_losses, expected = reference(device)
    rank, failures = torch.distributed.get_rank(), 0
    for dtype, bound in BOUND.items():
        for stage in range(4):
            settings = [("", {}, nullcontext())]
            settings += [("other stream", {}, torch.cuda.stream(torch.cuda.Stream()))]
            if stage > 0:
                offload = {"offload_optimizer": {"device": "cpu"}}
                settings += [("offload_optimizer", offload, nullcontext())]
            if stage == 3:
                offload = {"offload_param": {"device": "cpu"}}
                settings += [("offload_param", offload, nullcontext())]
            for name, zero, stream in settings:
                losses, values = train({"stage": stage} | zero, dtype, stream)
                worst = max(abs(a / b - 1) for a, b in zip(losses, expected_losses, strict=True))
                for key, value in values.items() if dtype == "fp32" else ():
                    difference = (value - expected[key]).norm() / expected[key].norm()
                    worst = max(worst, difference.item())
                text = f"stage {stage} {dtype} {name}: {worst:.1e}"
                failures += tell(worst <= bound, text) if rank == 0 else not worst <= bound
    torch.distributed.destroy_process_group()
    return failures


def main() -> int:
    if sys.argv[1:] == ["rank"]:
        return 1 if check_rank() else 0
    if not torch.cuda.is_available():
        print("torch_on_gpu: PyTorch sees no GPU, so nothing was run", file=sys.stderr)
        return 3
    failed = False
    for ranks in (1, 2):
        print(f"{ranks} ranks on one GPU", flush=True)
        failed |= not run_ranks(build_named(sys.argv[1:]), ranks, __file__, "rank")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
