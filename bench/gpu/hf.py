#!/usr/bin/env python3
"""A Llama of Hugging Face's on one GPU: plain PyTorch, FSDP2, and zerorun at stages 1 to 3.

    python bench/gpu/hf.py [--build build/release] [--sides torch zerorun3] [--trace FOLDER]

The model trains in bf16 with fp32 masters and AdamW, gradients clipped at 1: PyTorch's and FSDP2's
way is fp32 parameters with autocast and a mixed precision policy. Every side runs in processes of
its own, which take turns, and the least time counts.

- a step, and its forward and backward, on 4 x 1024 tokens;
- memory: what PyTorch allocated at most, zerorun's own at most, and `zerorun plan` for the latter;
- the host's share: forward and backward of one sequence of 8 tokens, over the bare model's in the
  same process, for each parameter. The GPU has next to nothing to do then.

--trace writes one step of each side for a profiler's viewer (ui.perfetto.dev). Exits 4 when a
target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from harness import BUILD, Targets, keep_least, least_ms, rows_of

SIDES = ("torch", "fsdp2", "zerorun1", "zerorun2", "zerorun3")
TARGETS = {"fsdp2": 1.0, "plan": 1.05}
# Hidden size, inner size, layers, heads, vocabulary. A block of "1b" has more elements than
# stage3_prefetch_bucket_size.
SHAPES = {"1b": (2048, 5632, 16, 16, 32000), "nano": (64, 128, 2, 4, 256)}
TINY = 8


def llama_config(shape: str, tokens: int) -> Any:
    from transformers import LlamaConfig

    hidden, inner, layers, heads, vocabulary = SHAPES[shape]
    return LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=inner, use_cache=False,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
        max_position_embeddings=max(tokens, TINY), tie_word_embeddings=False,
        attn_implementation="sdpa",
    )  # fmt: skip


def ds_config(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}},
        "bf16": {"enabled": True},
    }


class TorchSide:
    """PyTorch's own optimizer around the model, which FSDP2 has changed or not."""

    def __init__(self, model: Any, fsdp2: bool, device: str) -> None:
        import torch

        self.model, self.device, self.autocast = model, device, not fsdp2
        if fsdp2:
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

            torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            for block in model.model.layers:
                fully_shard(block, mp_policy=policy)
            fully_shard(model, mp_policy=policy)
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-4, weight_decay=0.1, fused=device == "cuda"
        )

    def forward_backward(self, tokens: Any) -> None:
        import torch

        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            loss = self.model(tokens, labels=tokens).loss
        loss.backward()

    def update(self) -> None:
        import torch

        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def memory(self) -> dict[str, int]:
        return {}


class ZerorunSide:
    def __init__(self, model: Any, stage: int) -> None:
        import zerorun

        self.engine, *_ = zerorun.initialize(model, config=ds_config(stage))

    def forward_backward(self, tokens: Any) -> None:
        self.engine.backward(self.engine(tokens, labels=tokens).loss)

    def update(self) -> None:
        self.engine.step()

    def memory(self) -> dict[str, int]:
        """What the library's own ledger had at most, category by category."""
        ledger = self.engine._meter.figures.memory()
        return {name: peak for name, (_, peak) in ledger.items() if name != "kept"}


def synchronize(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def time_steps(side: Any, tokens: Any, rounds: int, device: str) -> tuple[float, float]:
    """Milliseconds of a step and of its forward and backward, the least of all rounds."""
    steps, passes = [], []
    for _ in range(rounds + 2):
        synchronize(device)
        begin = time.perf_counter()
        side.forward_backward(tokens)
        synchronize(device)
        passes.append(time.perf_counter() - begin)
        side.update()
        synchronize(device)
        begin = time.perf_counter()
        side.forward_backward(tokens)
        side.update()
        synchronize(device)
        steps.append(time.perf_counter() - begin)
    return min(steps[2:]) * 1e3, min(passes[2:]) * 1e3


def write_trace(side: Any, tokens: Any, device: str, file: Path) -> None:
    import torch

    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profile:
        side.forward_backward(tokens)
        side.update()
        synchronize(device)
    file.parent.mkdir(parents=True, exist_ok=True)
    profile.export_chrome_trace(str(file))


def run_side(options: argparse.Namespace) -> None:
    """This process's side, which prints its figures as one line of JSON."""
    import torch
    from transformers import LlamaForCausalLM

    name, device = options.side, options.device
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(llama_config(options.shape, options.seq_len))
    generator = torch.Generator().manual_seed(1)
    shape = (options.batch, options.seq_len)
    tokens = torch.randint(0, model.config.vocab_size, shape, generator=generator).to(device)
    tiny = tokens[:1, :TINY].contiguous()

    def bare() -> None:
        model(tiny, labels=tiny).loss.backward()
        synchronize(device)
        for parameter in model.parameters():
            parameter.grad = None

    model.bfloat16()
    alone = least_ms(bare, 3, 5 * options.rounds)
    if not name.startswith("zerorun"):
        model.float()
    if name.startswith("zerorun"):
        side = ZerorunSide(model, int(name[-1]))
    else:
        side = TorchSide(model, name == "fsdp2", device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step, passes = time_steps(side, tokens, options.rounds, device)
    found = {"step": step, "passes": passes, "own": sum(side.memory().values())}
    found["torch"] = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    _, found["tiny"] = time_steps(side, tiny, 5 * options.rounds, device)
    found |= {"alone": alone, "parameters": sum(1 for _ in model.parameters())}
    if options.trace is not None:
        write_trace(side, tokens, device, options.trace / f"trace_{name}.json.gz")
    print(json.dumps(found), flush=True)
    os._exit(0)  # what peers do at the end is not measured


def launcher(options: argparse.Namespace) -> Path:
    return options.build.resolve() / "bin" / "zerorun"


def measure(name: str, trace: bool, options: argparse.Namespace) -> dict[str, float]:
    command = [launcher(options), "--accelerator", options.device, "--num_gpus", 1]
    command += ["--no_local_rank", __file__, "--side", name, "--shape", options.shape]
    command += ["--device", options.device, "--batch", options.batch]
    command += ["--seq_len", options.seq_len, "--rounds", options.rounds]
    if trace and options.trace is not None:
        command += ["--trace", options.trace]
    path = os.pathsep.join(
        [str(options.build.resolve() / "python"), os.environ.get("PYTHONPATH", "")]
    )
    variables = {"PYTHONPATH": path, "ZERORUN_PYTHON": sys.executable, "ZERORUN_COMPAT": "0"}
    return rows_of(name, command, variables)[0]


def planned_bytes(stage: int, options: argparse.Namespace) -> int:
    """What `zerorun plan` prints for this rank's device."""
    with tempfile.TemporaryDirectory() as folder:
        llama_config(options.shape, options.seq_len).save_pretrained(folder)
        config = Path(folder) / "ds_config.json"
        config.write_text(json.dumps(ds_config(stage)))
        command = [launcher(options), "plan", config, "--model", Path(folder) / "config.json"]
        command += ["--json"] + ["--cpu"] * (options.device == "cpu")
        job = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = json.loads(job.stdout)["settings"]
    row = next(
        row for row in rows
        if (row["stage"], row["offload_optimizer"], row["offload_param"]) == (stage, "none", "none")
    )  # fmt: skip
    return row["device_bytes"] + (row["host_bytes"] if options.device == "cpu" else 0)


def report(best: dict[str, dict[str, float]], options: argparse.Namespace) -> bool:
    """Prints the table, and what has a target; whether one is missed."""
    targets = Targets(TARGETS)
    print(f"Llama {options.shape}, bf16, {options.batch} x {options.seq_len} tokens, 1 rank")
    print(f"{'':10}{'step ms':>9}{'passes':>9}{'torch MiB':>11}{'own MiB':>9}{'plan MiB':>10}"
          f"{'hooks us':>10}")  # fmt: skip
    mib = 1 << 20
    plans = {
        name: planned_bytes(int(name[-1]), options) for name in best if name.startswith("zerorun")
    }
    for name, row in best.items():
        plan = f"{plans[name] / mib:.0f}" if name in plans else ""
        hooks = (row["tiny"] - row["alone"]) * 1e3 / row["parameters"]
        print(f"{name:10}{row['step']:9.1f}{row['passes']:9.1f}{row['torch'] / mib:11.0f}"
              f"{row['own'] / mib:9.0f}{plan:>10}{hooks:10.2f}")  # fmt: skip
    for name, plan in plans.items():
        targets.show(f"{name}: own memory over plan", best[name]["own"] / plan, "plan", most=True)
        if "fsdp2" in best:
            ratio = best[name]["step"] / best["fsdp2"]["step"]
            targets.show(f"{name}: step over FSDP2's", ratio, "fsdp2", most=True)
    return targets.missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=BUILD)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a trial")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq_len", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=6, help="steps of a process")
    parser.add_argument("--turns", type=int, default=2, help="processes of a side")
    parser.add_argument("--trace", type=Path, help="folder for one step of each side")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        run_side(options)
    best: dict[str, dict[str, float]] = {}
    for turn in range(options.turns):
        for name in options.sides:
            keep_least(best, name, measure(name, turn == 0, options))
    return 4 if report(best, options) else 0


if __name__ == "__main__":
    sys.exit(main())
