"""Lamb: trust ratios need whole tensors, which a torch optimizer on shards does not see."""

from deepspeed._placeholders import placeholder

FusedLamb = placeholder("deepspeed.ops.lamb.FusedLamb")
