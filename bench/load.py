"""Host memory while a model is loaded from safetensors files, beside what there is afterwards.

    python bench/load.py [WAY/STAGE ...] [--ranks 2 4] [--megabytes 1000] [--width 512]

Without names it is every way at every stage. WAY is

- init: transformers' from_pretrained under zero.Init (stage 3).
- engine: the same, then initialize with AdamW, in bf16; engine/0/fp32 in fp32, and
  engine/3/offload with the optimizer's states on the host.
- shard: zerorun.shard of a model on the meta device with weights=, without an optimizer.
- train: zerorun train --init, beside the same run that makes its weights.

All but train run one after the other in the same processes.

Memory is the anonymous and shared part of the proportional set size (PSS), in which a page that
several processes share counts once. Pages of mapped files do not count: the system takes them back
when memory is short. It counts from before each load on, after a small one that leaves what is made
once, and after what was freed went back to the system (of train from the start). Printed are the
largest sum over the ranks and its limit: what is kept and one module, which of zero.Init every rank
has. Ends with 1 if a load exceeds it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness import BUILD

STAGES = {"init": [3], "engine": range(4), "shard": range(4), "train": range(4)}
WIDTH, WORDS = 512, 8192
MARK = "load.py: "


class Load(NamedTuple):
    """WAY/STAGE, with /fp32 and /offload behind it."""

    way: str
    stage: int
    dtype: str = "bf16"
    offload: bool = False

    @staticmethod
    def named(name: str) -> Load:
        if name in LOADS:
            return LOADS[name]
        raise argparse.ArgumentTypeError(
            f"got {name!r}, expected init/3, shard/STAGE, train/STAGE or engine/STAGE, the last "
            "with /fp32, /offload, both or neither"
        )

    def __str__(self) -> str:
        settings = ["fp32"] * (self.dtype == "fp32") + ["offload"] * self.offload
        return "/".join([self.way, str(self.stage), *settings])


EVERY = [Load(way, stage) for way, stages in STAGES.items() for stage in stages]
SETTINGS = [{"dtype": "fp32"}, {"offload": True}, {"dtype": "fp32", "offload": True}]
ENGINES = [load._replace(**of) for load in EVERY if load.way == "engine" for of in SETTINGS]
LOADS = {str(load): load for load in (*EVERY, *ENGINES)}


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


def pss_of(pids: list[int]) -> dict[int, int]:
    """Of one moment: a page that a process maps between two readings would count in both."""

    def send(number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    send(signal.SIGSTOP)
    try:
        return {pid: pss(pid) for pid in pids}
    finally:
        send(signal.SIGCONT)


def samples_of(command: list[str], folder: Path) -> Iterator[tuple[str, dict[int, int]]]:
    """PSS by rank, and the moment that the job said last, until it ends: of a job that says
    moments, from the first on. A file of that name in `folder` lets the job go on."""
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said = ["" if "train" in command else "start"]

    def read() -> None:
        assert job.stdout is not None
        for line in job.stdout:
            if line.startswith(MARK):
                said.append(line.removeprefix(MARK).strip())

    reader = threading.Thread(target=read)
    reader.start()
    while job.poll() is None:
        moment, began = said[-1], time.monotonic()
        if moment != "start":
            yield moment, pss_of(descendants(job.pid))
            (folder / moment).touch()
        time.sleep(0.01 + time.monotonic() - began)  # the job gets half of the time
    reader.join()
    if job.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {job.returncode}")


def launcher(ranks: int) -> list[str]:
    return [str(BUILD / "bin" / "zerorun"), "--accelerator", "cpu", "--num_gpus", str(ranks)]


def measure(loads: list[Load], ranks: int, folder: Path) -> Iterator[tuple[int, int]]:
    """Loads the model that make_model has written to `folder` in the processes of one job: the most
    bytes of all ranks, and those that are kept."""
    samples: dict[str, list[dict[int, int]]] = {}
    with tempfile.TemporaryDirectory() as moments:
        command = [*launcher(ranks), "--deepspeed_compat", __file__, *map(str, loads)]
        command += ["--rank_of", str(folder), moments]
        for moment, sample in samples_of(command, Path(moments)):
            samples.setdefault(moment, []).append(sample)
    for number in range(len(loads)):
        meanwhile = samples[f"before {number}"] + samples[f"after {number}"][:1]
        before, *sums = (sum(sample.values()) for sample in meanwhile)
        yield max(sums) - before, sums[-1] - before


def measure_train(loads: list[Load], ranks: int, folder: Path) -> Iterator[tuple[int, int]]:
    config = folder / "zero.json"
    options = ["--steps", "0", "--config", str(config), "--sample", "", "--save", ""]
    for load in loads:
        config.write_text(
            '{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"},'
            f' "zero_optimization": {{"stage": {load.stage}}}}}'
        )
        peaks = []
        for source in ("--model", str(folder / "config.json")), ("--init", str(folder)):
            command = [*launcher(ranks), "train", "--data", __file__, "--seq_len", "16"]
            samples = samples_of([*command, *options, *source], folder)
            peaks.append(max(sum(sample.values()) for _, sample in samples))
        kept, peak = peaks
        yield peak, kept


def run_loads(loads: list[Load], folder: Path, moments: Path) -> None:
    """What one rank does."""
    from zerorun import communicator

    for number, load in enumerate(loads):
        end(engine_of(load, folder / "small"))  # with it comes what is imported and made once
        pause(communicator.world(), f"before {number}", moments)
        kept = engine_of(load, folder)
        pause(communicator.world(), f"after {number}", moments)
        end(kept)
        del kept


def end(kept: Any) -> None:
    """Of an engine; a model has no end."""
    if hasattr(kept, "destroy"):
        kept.destroy()


def engine_of(load: Load, folder: Path) -> Any:
    """The engine, or the model if there is none."""
    import torch
    import transformers
    import zerorun
    from zerorun import communicator

    if load.way in {"init", "engine"}:
        from transformers.integrations import HfDeepSpeedConfig

        home = "cpu" if load.offload else "none"
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": load.dtype == "bf16"},
            "zero_optimization": {"stage": load.stage, "offload_optimizer": {"device": home}},
        }
        dtype = torch.bfloat16 if load.dtype == "bf16" else torch.float32
        kept = HfDeepSpeedConfig(config)  # with which transformers uses zero.Init
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        del kept
        if load.way == "init":
            return model
        optimizer = torch.optim.AdamW(model.parameters())
        return zerorun.initialize(model, optimizer, config=config)[0]
    settings = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16)
    weights = Weights(folder) if communicator.world().rank == 0 else {}
    return zerorun.shard(
        model, stage=load.stage, dtype=torch.bfloat16, weights=weights, init=tables_of
    )


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
    trim()  # what was freed is not kept
    communicator.barrier(moment)
    if communicator.rank == 0:
        print(f"{MARK}{moment}", flush=True)
    until = time.monotonic() + 60  # whoever measures may be gone
    while not (folder / moment).exists() and time.monotonic() < until:
        time.sleep(0.001)


def make_model(folder: Path, of_train: bool, megabytes: int, width: int) -> int:
    """Writes a model (train has GPT-2) and a small one. Returns the bytes of its largest module."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()

    for place, nbytes in ((folder / "small", 0), (folder, megabytes << 20)):
        if of_train:
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


def print_row(load: Load, ranks: int, module: int, peak: int, kept: int) -> bool:
    """False if the load exceeds its limit."""
    module *= 2 if load.dtype == "fp32" else 1  # than in the files
    limit = kept + module * (ranks if load.way == "init" else 1)
    columns = "".join(f"{nbytes / 2**20:9.0f}" for nbytes in (peak, kept, module, limit))
    print(f"{load!s:22}{ranks:5} {columns}", flush=True)
    return peak <= limit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("loads", nargs="*", default=EVERY, type=Load.named, metavar="WAY/STAGE")
    parser.add_argument("--ranks", nargs="+", type=int, default=(2, 4))
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--width", type=int, default=WIDTH, help="of the model's modules")
    parser.add_argument("--rank_of", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        run_loads(options.loads, *options.rank_of)
        return 0
    os.environ["VIRTUAL_ENV"] = sys.prefix  # the launcher runs the ranks with this Python
    print(f"{'way/stage':22}ranks  largest sum, kept, module, limit (MiB)")
    held = True
    for of_train, measured in ((False, measure), (True, measure_train)):
        loads = [load for load in options.loads if (load.way == "train") == of_train]
        if not loads:
            continue
        with tempfile.TemporaryDirectory() as folder:
            module = make_model(Path(folder), of_train, options.megabytes, options.width)
            for ranks in options.ranks:
                for load, got in zip(loads, measured(loads, ranks, Path(folder)), strict=True):
                    held &= print_row(load, ranks, module, *got)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
