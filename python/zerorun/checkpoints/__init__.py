"""Writing zerorun's checkpoints, and reading them."""
