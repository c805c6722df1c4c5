"""Host memory while a model is loaded from safetensors files, beside what there is afterwards.

    python bench/load.py [--ways init engine shard train] [--ranks 2 4] [--stages 0 1 2 3]
        [--megabytes 1000] [--dtype bf16] [--offload]

- init: transformers' from_pretrained under zero.Init (stage 3).
- engine: the same, then initialize with AdamW, in `--dtype`, with `--offload` on the host.
- shard: zerorun.shard of a model on the meta device with weights=, without an optimizer.
- train: zerorun train --init, beside the same run that makes its weights.

Memory is the anonymous and shared part of the proportional set size (PSS), in which a page that
several processes share counts once. Pages of mapped files do not count: the system takes them back
when memory is short. It counts from before the load on (of train from the start). Printed are the
largest of a rank, the largest sum over the ranks and its limit: what is kept and one module, which
of zero.Init every rank has. Ends with 1 if a load exceeds it.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "release"
sys.path.append(str(BUILD / "python"))

WAYS = ("init", "engine", "shard", "train")
WIDTH, WORDS = 512, 8192
MARK = "load.py: "
MOMENTS = ("before", "after")


class Memory(NamedTuple):
    """Bytes, of which `largest` is one rank's and the others are sums over the ranks."""

    largest: int
    peak: int
    kept: int


def pss(pid: int) -> int:
    """Bytes of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    counted = [line.split() for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
    return sum(int(kilobytes) << 10 for _, kilobytes, _ in counted)


def descendants(pid: int) -> list[int]:
    """The processes that a launcher has started, ranks among them."""
    found, pending = [], [pid]
    while pending:
        for task in Path(f"/proc/{pending.pop()}/task").glob("*/children"):
            try:
                own = [int(child) for child in task.read_text().split()]
            except OSError:
                continue
            found += own
            pending += own
    return found


def samples_of(command: list[str], folder: Path) -> Iterator[tuple[str, dict[int, int]]]:
    """PSS by rank, and the moment that the job said last, until it ends. A file of that name in
    `folder` lets the job go on."""
    for moment in MOMENTS:
        (folder / moment).unlink(missing_ok=True)
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said = ["start"]

    def read() -> None:
        assert job.stdout is not None
        for line in job.stdout:
            if line.startswith(MARK):
                said.append(line.removeprefix(MARK).strip())

    reader = threading.Thread(target=read)
    reader.start()
    while job.poll() is None:
        moment = said[-1]
        yield moment, {pid: pss(pid) for pid in descendants(job.pid)}
        if moment in MOMENTS:
            (folder / moment).touch()
        time.sleep(0.01)
    reader.join()
    if job.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {job.returncode}")


def measure(way: str, ranks: int, stage: int, folder: Path, options: Namespace) -> Memory:
    """One load of the model that make_model has written to `folder`."""
    launcher = [str(BUILD / "bin" / "zerorun"), "--accelerator", "cpu", "--num_gpus", str(ranks)]
    if way == "train":
        return _measure_train(launcher, stage, folder)
    if way in {"init", "engine"}:
        launcher.append("--deepspeed_compat")
    command = [*launcher, __file__, "--rank_of", way, str(stage), str(folder)]
    command += ["--dtype", options.dtype, *(["--offload"] if options.offload else [])]
    samples: dict[str, list[dict[int, int]]] = {}
    for moment, sample in samples_of(command, folder):
        samples.setdefault(moment, []).append(sample)
    before = samples["before"][0]
    since = [
        {pid: nbytes - before[pid] for pid, nbytes in sample.items() if before.get(pid)}
        for sample in samples["before"] + samples["after"][:1]
    ]
    sums = [sum(sample.values()) for sample in since]
    return Memory(max(max(sample.values()) for sample in since), max(sums), sums[-1])


def _measure_train(launcher: list[str], stage: int, folder: Path) -> Memory:
    config = folder / "zero.json"
    config.write_text(
        '{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"},'
        f' "zero_optimization": {{"stage": {stage}}}}}'
    )
    options = ["--steps", "0", "--config", str(config), "--sample", "", "--save", ""]
    found = []
    for source in ("--model", str(folder / "config.json")), ("--init", str(folder)):
        command = [*launcher, "train", "--data", __file__, "--seq_len", "16", *options, *source]
        samples = [sample for _, sample in samples_of(command, folder)]
        largest = max(max(sample.values(), default=0) for sample in samples)
        found.append((largest, max(sum(sample.values()) for sample in samples)))
    (_, kept), (largest, peak) = found
    return Memory(largest, peak, kept)


def load(way: str, stage: int, folder: Path, options: Namespace) -> None:
    """What one rank does."""
    from zerorun import communicator

    kept = engine_of(
        way, stage, folder / "small", options
    )  # with it comes what is imported and made once
    if hasattr(kept, "destroy"):
        kept.destroy()
    del kept
    world = communicator.world()
    pause(world, "before", folder)
    kept = engine_of(way, stage, folder, options)
    pause(world, "after", folder)
    if hasattr(kept, "destroy"):
        kept.destroy()


def engine_of(way: str, stage: int, folder: Path, options: Namespace) -> Any:
    """The engine, or the model if there is none."""
    import torch
    import transformers
    import zerorun
    from zerorun import communicator

    if way in {"init", "engine"}:
        from transformers.integrations import HfDeepSpeedConfig

        home = "cpu" if options.offload else "none"
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": options.dtype == "bf16"},
            "zero_optimization": {"stage": stage, "offload_optimizer": {"device": home}},
        }
        dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
        kept = HfDeepSpeedConfig(config)  # with which transformers uses zero.Init
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        del kept
        if way == "init":
            return model
        optimizer = torch.optim.AdamW(model.parameters())
        return zerorun.initialize(model, optimizer, config=config)[0]
    settings = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16)
    weights = Weights(folder) if communicator.world().rank == 0 else {}
    return zerorun.shard(model, stage=stage, dtype=torch.bfloat16, weights=weights, init=tables_of)


class Weights(Mapping[str, Any]):
    """The tensors of safetensors files, each read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        files = [safe_open(path, framework="pt") for path in folder.glob("*.safetensors")]
        self._files = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def __getitem__(self, name: str) -> Any:
        return self._files[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def tables_of(module: Any) -> None:
    """Writes the buffers that no file has."""
    if hasattr(module, "original_inv_freq"):
        made = type(module)(module.config)
        module.inv_freq.copy_(made.inv_freq)
        module.original_inv_freq.copy_(made.original_inv_freq)


def pause(communicator: Any, moment: str, folder: Path) -> None:
    """Tells whoever measures that `moment` is there on all ranks, and waits for it."""
    from zerorun.host_memory import trim

    gc.collect()
    if moment == "before":
        trim()
    communicator.barrier(moment)
    if communicator.rank == 0:
        print(f"{MARK}{moment}", flush=True)
    until = time.monotonic() + 60  # whoever measures may be gone
    while not (folder / moment).exists() and time.monotonic() < until:
        time.sleep(0.001)


def make_model(folder: Path, way: str, megabytes: int, width: int) -> int:
    """Writes a model, and a small one beside it. Returns the bytes of the largest module."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()

    for place, nbytes in ((folder / "small", 0), (folder, megabytes << 20)):
        if way == "train":
            layers = max(1, nbytes // (48 * width**2))
            settings = transformers.GPT2Config(
                n_embd=width, n_head=8, n_layer=layers, n_positions=64, vocab_size=WORDS
            )
        else:
            settings = transformers.LlamaConfig(
                hidden_size=width,
                intermediate_size=4 * width,
                num_attention_heads=8,
                num_hidden_layers=max(1, nbytes // (32 * width**2)),
                tie_word_embeddings=False,
                vocab_size=WORDS,
                dtype=torch.bfloat16,
            )
        model = transformers.AutoModelForCausalLM.from_config(settings)
        model.save_pretrained(place, max_shard_size=f"{max(20, megabytes // 5)}MB")
    return max(
        sum(parameter.nbytes for parameter in module.parameters())
        for module in model.modules()
        if not any(isinstance(inner, torch.nn.ModuleList) for inner in module.modules())
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--ranks", nargs="+", type=int, default=(2, 4))
    parser.add_argument("--stages", nargs="+", type=int, default=(0, 1, 2, 3))
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--width", type=int, default=WIDTH, help="of the model's modules")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp32"))
    parser.add_argument("--offload", action="store_true", help="optimizer states to host memory")
    parser.add_argument("--rank_of", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        way, stage, folder = options.rank_of
        load(way, int(stage), Path(folder), options)
        return 0
    os.environ["VIRTUAL_ENV"] = sys.prefix  # the launcher runs the ranks with this Python
    print("way     stage ranks  largest of a rank, sum, kept, module, limit (MiB)")
    exceeded = False
    with tempfile.TemporaryDirectory() as temporary:
        for way in options.ways:
            folder = Path(temporary) / ("gpt2" if way == "train" else "llama")
            module = make_model(folder, way, options.megabytes, options.width)
            module *= 2 if options.dtype == "fp32" else 1  # than in the files
            for stage in [3] if way == "init" else options.stages:
                for ranks in options.ranks:
                    got = measure(way, ranks, stage, folder, options)
                    limit = got.kept + module * (ranks if way == "init" else 1)
                    exceeded |= got.peak > limit
                    shown = (*got, module, limit)
                    columns = "".join(f"{nbytes / 2**20:9.0f}" for nbytes in shown)
                    print(f"{way:7} {stage:5} {ranks:5} {columns}", flush=True)
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
