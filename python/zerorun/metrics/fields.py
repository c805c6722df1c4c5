"""The table of all figures of a step. docs/metrics.md is generated from it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Field:
    """One figure of a step."""

    name: str
    kind: str  # of JSON, with what its parts are
    unit: str
    doc: str
    sources: str = "both"  # "python": only engine.metrics() has it; "train": only zerorun train


_TABLE = """
rank | integer |  | python
    The rank whose figures these are; in files only.
step | integer |  | both
    Number of optimizer steps so far, with this one and skipped ones.
samples | integer |  | both
    Number of samples that all ranks have trained on so far.
time_s | number | s | both
    Time at the end of the step, in seconds since 1970 (Unix time).
loss | number |  | both
    Mean of the losses of all micro-steps. `train`: also over all ranks. PyTorch programs: the
    losses passed to `engine.backward` on this rank.
lr | number |  | both
    Learning rate of the first parameter group in this step.
lrs | array of numbers |  | python
    Learning rate of each parameter group.
grad_norm | number |  | both
    L2 norm of the averaged gradient before clipping; null if it is not finite.
clipped_grad_norm | number |  | both
    L2 norm of the averaged gradient after clipping.
clip_factor | number |  | both
    Factor by which clipping multiplied the gradient.
loss_scale | number |  | both
    Loss scale with which the gradients were computed.
skipped | boolean |  | both
    True if the gradient was not finite, so the step updated nothing.
skipped_steps | integer |  | both
    Number of skipped steps so far.
step_ms | number | ms | both
    Time from the end of the previous step to the end of this one. `train`: without evaluations
    and saves in between.
forward_ms | number | ms | python
    Time in forward calls of the engine, all micro-steps; on a GPU the time on its stream.
backward_ms | number | ms | python
    Time in `engine.backward`, communication included.
fwd_bwd_ms | number | ms | train
    Time of forward and backward without communication.
comm_ms | number | ms | both
    Time in which this rank's main thread performed or waited for reductions and gathers, so
    communication that was not overlapped with anything.
reduce_ms | number | ms | both
    The part of `comm_ms` that is reductions.
gather_ms | number | ms | both
    The part of `comm_ms` that is gathers.
reduce_hidden_ms | number | ms | both
    Time of reductions that were overlapped: this rank's main thread neither waited nor was in
    the engine's step. Not known on a GPU.
gather_hidden_ms | number | ms | both
    The same for gathers.
offload_ms | number | ms | both
    Time of offloading (updates on the host, copies from and to the host, disk) while this
    rank's main thread waited or was in the engine's step; on a GPU without the copies.
offload_hidden_ms | number | ms | both
    Time of offloading that was overlapped with other work.
optimizer_ms | number | ms | both
    Time of norm, update and all_gather of the updated parameters.
call_ms | number | ms | python
    Time in `engine.step`, all micro-steps.
other_ms | number | ms | python
    Time between calls of the engine: loading data, saving, and all else that the program does.
data_ms | number | ms | both
    The part of `other_ms` that waits for the data loader that `initialize` made from
    `training_data`. `train`: time to read and prepare the batch.
checkpoint_ms | number | ms | both
    Time in `save_checkpoint` since the previous step: how long saving stopped the training. For
    an asynchronous save this is the copy.
step_shares | object of numbers |  | both
    How this rank spent the step, in fractions of it: `waited` for other ranks in collectives;
    `data`: PyTorch programs from the end of `engine.step` to the next forward; `copy`: waiting
    for offloading; `save`: checkpoints; `compute`: all else. Here a step lasts from one
    gradient norm to the next, so a save counts in the step after it. On a GPU the host's waits
    for it count as `waited`.
straggler | object |  | both
    Rank 0 only, and only if the others persistently wait for one rank ([slow.md](slow.md)): its
    `rank` and `host`, the `share` of the time in which it is waited for, the `cause` (a name of
    `step_shares`), and all this as a `text`.
samples_per_s | number | 1/s | python
    Samples of all ranks divided by `step_ms`.
tokens_per_s | number | 1/s | both
    Tokens of all ranks divided by `step_ms`; PyTorch programs: if the input of the engine is a
    tensor of tokens.
flops | number |  | python
    Floating point operations of the model in the step, on all ranks. After the `flops_profiler`
    has counted a forward pass: three times its count. Otherwise, if the number of tokens is
    known: 6 per token and weight of a matrix product (4 for frozen weights; all experts count;
    attention does not).
mfu | number |  | both
    Model FLOPs utilisation, 0 to 1: `flops` per second divided by the rate that large matrix
    products reached on all ranks together before the first step. PyTorch programs have it with
    a metrics file or after `engine.measure_peak()`. `train` counts attention, too.
collectives | object of [calls, bytes, ms] | B, ms | both
    The collectives of this rank in the step, by operation: number of calls, bytes of the full
    tensors, and time with waiting for other ranks (null on a GPU).
memory | object of numbers | B | both
    Memory that the engine holds on this rank, by category.
memory_peak | object of numbers | B | both
    The largest values of `memory` so far.
model_state_bytes | integer | B | both
    Bytes of parameters, gradients and optimizer states of this rank.
rss_bytes | integer | B | both
    Resident memory of this process.
peak_rss_bytes | integer | B | both
    The largest resident memory of this process so far.
gpu_bytes | integer | B | python
    Memory that PyTorch holds on this rank's GPU.
"""


def _read(table: str) -> Iterator[Field]:
    """Fields of a line each, with what they mean in the lines below."""
    for entry in re.split(r"\n(?=\S)", table.strip()):
        head, *doc = entry.splitlines()
        name, kind, unit, sources = (part.strip() for part in head.split("|"))
        yield Field(name, kind, unit, " ".join(map(str.strip, doc)), sources)


FIELDS = tuple(_read(_TABLE))

_HEAD = """# Metrics

Each optimizer step yields one object with the figures below. `engine.metrics()` returns the last
one as a dictionary, and `engine.add_listener(f)` calls `f` with each. Files have one JSON object
per line: `zerorun train --metrics FILE`, and PyTorch programs with `{"zerorun": {"metrics":
"FILE"}}` in their configuration. Ranks other than 0 write their own file beside it
(`m.rank1.jsonl` for `m.jsonl`).

An unknown figure is null or missing. A number that is not finite is null. Times are measured by
the host's clock, except forward and backward on a GPU: their times come from events of its stream
that are read after they have completed, so nothing waits for them. PyTorch programs measure times
of overlapped work only if there is a listener, a metrics file or a monitor.

| name | type | unit | available in | meaning |
|---|---|---|---|---|
"""

_TAIL = """
The first line of a file is `{"zerorun_metrics": 1, "rank": .., "world_size": .., "run": {..}}`.
`zerorun_metrics` is the version of this format. `run` has `config` ([pointer, value, whether it is
the default] of each setting), `environment`, `parameters`, the `plan` of this rank's memory by
category, and `limits`: the rate of 16 MiB collectives measured before the first step, in bytes of
the full tensor per second. A reader ignores names that it does not know, and rejects a file of a
later version. The last line of a file of `zerorun train` has `param_hash`, a hash of all
parameters.

Programs that read these files:

- `zerorun top m.jsonl` shows the ranks in a terminal.
- `zerorun report m.jsonl -o report.html` writes a page; with `--serve` the page follows the run.
- `zerorun monitor --tensorboard DIR m.jsonl --follow` passes the figures on to TensorBoard, CSV
  files, Weights & Biases or Comet.
- `zerorun tune` compares its trial runs.
"""

_SOURCES = {"both": "both", "python": "PyTorch programs", "train": "`zerorun train`"}


def markdown() -> str:
    """The text of docs/metrics.md."""
    rows = [
        f"| `{f.name}` | {f.kind} | {f.unit} | {_SOURCES[f.sources]} | {f.doc} |\n" for f in FIELDS
    ]
    return _HEAD + "".join(rows) + _TAIL
