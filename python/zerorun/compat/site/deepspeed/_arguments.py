"""Command-line arguments of DeepSpeed scripts."""

import argparse


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --deepspeed and --deepspeed_config, and their older names."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    for name in ("deepspeed", "deepscale"):
        hidden = argparse.SUPPRESS if name == "deepscale" else None
        group.add_argument(f"--{name}", default=False, action="store_true", help=hidden)
        group.add_argument(f"--{name}_config", default=None, type=str, help=hidden)
    return parser
