"""The table of all figures of a step; docs/metrics.md is made of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FIELDS", "VERSION", "Field", "markdown"]

VERSION = 1  # of a metrics file; a reader refuses later ones


@dataclass(frozen=True)
class Field:
    """One figure of a step."""

    name: str
    kind: str  # of JSON, with what its parts are
    unit: str
    doc: str
    sources: str = "both"  # "python": only engine.metrics() has it; "train": only zerorun train


FIELDS = (
    Field("rank", "integer", "", "Whose figures these are; in files only.", "python"),
    Field("step", "integer", "", "Optimizer steps so far, this one included; skipped ones count."),
    Field("samples", "integer", "", "Samples of all ranks so far."),
    Field("time_s", "number", "s", "When the step ended, since 1970."),
    Field(
        "loss",
        "number",
        "",
        "Mean over micro-steps; `train`: over ranks too, else this rank's, "
        "of the losses that were given to `engine.backward`.",
    ),
    Field("lr", "number", "", "Learning rate of the first parameter group, in this step."),
    Field("lrs", "array of numbers", "", "Learning rate of each parameter group.", "python"),
    Field(
        "grad_norm",
        "number",
        "",
        "L2 norm of the averaged gradient before clipping; null when it is not finite.",
    ),
    Field("clipped_grad_norm", "number", "", "The same after clipping."),
    Field("clip_factor", "number", "", "What clipping multiplied the gradient with."),
    Field("loss_scale", "number", "", "The factor of the loss that the gradients were made with."),
    Field("skipped", "boolean", "", "The gradient was not finite, so nothing was updated."),
    Field("skipped_steps", "integer", "", "How many steps that happened to so far."),
    Field(
        "step_ms",
        "number",
        "ms",
        "From the end of the step before to the end of this one; `train`: without evaluations and "
        "saves between them.",
    ),
    Field(
        "forward_ms",
        "number",
        "ms",
        "In calls of the engine, all micro-steps; on a GPU the time that its stream took.",
        "python",
    ),
    Field(
        "backward_ms",
        "number",
        "ms",
        "In `engine.backward`, with the communication in it.",
        "python",
    ),
    Field("fwd_bwd_ms", "number", "ms", "Forward and backward without communication.", "train"),
    Field(
        "comm_ms",
        "number",
        "ms",
        "This rank's thread doing or waiting for reductions and "
        "gathers: what of communication nothing else hides.",
    ),
    Field("reduce_ms", "number", "ms", "The part of it that is reductions."),
    Field("gather_ms", "number", "ms", "The part of it that is gathers."),
    Field(
        "reduce_hidden_ms",
        "number",
        "ms",
        "Reductions that ran while this rank's thread neither waited nor was in the engine's step; "
        "not known on a GPU.",
    ),
    Field("gather_hidden_ms", "number", "ms", "The same of gathers."),
    Field(
        "offload_ms",
        "number",
        "ms",
        "Updates on the host, copies from and to it, and disk, while this rank's thread waited or "
        "was in the engine's step; on a GPU without the copies.",
    ),
    Field("offload_hidden_ms", "number", "ms", "The rest of them."),
    Field("optimizer_ms", "number", "ms", "Norm, update and all-gather of the updated parameters."),
    Field("call_ms", "number", "ms", "In `engine.step`, all micro-steps.", "python"),
    Field(
        "other_ms",
        "number",
        "ms",
        "Between the engine's calls: loading data, saving, and what else the program does.",
        "python",
    ),
    Field(
        "data_ms",
        "number",
        "ms",
        "The part of it that is waiting for the loader that `initialize` made of `training_data`; "
        "`train`: reading and preparing the batch.",
    ),
    Field(
        "checkpoint_ms",
        "number",
        "ms",
        "In `save_checkpoint` since the step before: what a save keeps the training from. Of one "
        "in the background that is the copy.",
    ),
    Field("samples_per_s", "number", "1/s", "Samples of all ranks by `step_ms`.", "python"),
    Field(
        "tokens_per_s",
        "number",
        "1/s",
        "Tokens of all ranks by `step_ms`; where the input of the engine is a tensor of tokens.",
    ),
    Field(
        "flops",
        "number",
        "",
        "Floating point operations of the model in the step, on all ranks: what the "
        "`flops_profiler` counted in one forward pass, three times, from then on; else, where "
        "tokens are known, 6 per token and weight of a product with a matrix (4 for frozen ones; "
        "all experts; no attention).",
        "python",
    ),
    Field(
        "mfu",
        "number",
        "",
        "Model FLOPs utilisation, 0 to 1: `flops` per second by what products of large matrices "
        "reached on all ranks together before the first step. A PyTorch program has it with a "
        "metrics file, or after `engine.measure_peak()`; `train` counts attention too.",
    ),
    Field(
        "collectives",
        "object of [calls, bytes, ms]",
        "B, ms",
        "What this rank took part in during the step, by operation: bytes of the full tensors, and "
        "the time that they took, with waiting for the others (null on a GPU).",
    ),
    Field(
        "memory",
        "object of numbers",
        "B",
        "What the engine holds on this rank, by category of the ledger.",
    ),
    Field("memory_peak", "object of numbers", "B", "The most that it held so far."),
    Field(
        "model_state_bytes",
        "integer",
        "B",
        "Parameters, gradients and optimizer states of this rank.",
    ),
    Field("rss_bytes", "integer", "B", "Memory of this process."),
    Field("peak_rss_bytes", "integer", "B", "The most of it so far."),
    Field("gpu_bytes", "integer", "B", "What PyTorch holds on this rank's GPU.", "python"),
)

_HEAD = """# Metrics

One object for each optimizer step. `engine.metrics()` returns the last one as a dictionary,
`engine.add_listener(f)` calls `f` with each, and a file has one JSON object a line: of
`zerorun train --metrics FILE`, and of a PyTorch program with `{"zerorun": {"metrics": "FILE"}}` in
its configuration. Other ranks than 0 write theirs beside it (`m.rank1.jsonl` for `m.jsonl`).

A figure that is not known is null or left out. Times are the host's, except those of forward and
backward on a GPU: events of its stream, read when they have happened, so nothing waits for them.
Numbers that are not finite are null. What ran beside the program is measured where somebody
listens: with a listener, a metrics file or a monitor.

| name | type | unit | who has it | meaning |
|---|---|---|---|---|
"""

_TAIL = """
The first line of a file is `{"zerorun_metrics": 1, "rank": .., "world_size": .., "run": {..}}`: the
version of this format, the rank, and of the run `config` ([pointer, value, whether it is the
default] of each setting), `environment`, `parameters`, the `plan` of this rank's memory by
category, and `limits`: bytes per second of the full tensor that collectives of 16 MiB reached
before the first step. A reader skips names that it does not know, and refuses a file of a later
version. The last line of `zerorun train`'s file has `param_hash`, a hash of all parameters.

Who reads them: `zerorun top m.jsonl` shows the ranks in a terminal, `zerorun report m.jsonl -o
report.html` makes a page, with `--serve` one that follows the run, `zerorun monitor --tensorboard
DIR m.jsonl --follow` passes the figures on to TensorBoard, CSV files, Weights & Biases or Comet,
and `zerorun tune` compares the runs that it makes.
"""

_SOURCES = {"both": "both", "python": "PyTorch programs", "train": "`zerorun train`"}


def markdown() -> str:
    """The text of docs/metrics.md."""
    rows = [
        f"| `{f.name}` | {f.kind} | {f.unit} | {_SOURCES[f.sources]} | {f.doc} |\n" for f in FIELDS
    ]
    return _HEAD + "".join(rows) + _TAIL
