"""The 1-bit optimizers: importable, not part of zerorun."""

from deepspeed._placeholders import placeholder

OnebitAdam = placeholder("deepspeed.runtime.fp16.onebit.OnebitAdam")
OnebitLamb = placeholder("deepspeed.runtime.fp16.onebit.OnebitLamb")
ZeroOneAdam = placeholder("deepspeed.runtime.fp16.onebit.ZeroOneAdam")
