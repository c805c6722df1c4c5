"""PyTorch's side of the step: zerorun's optimizers, a caller's on shards, schedules."""
