"""deepspeed.utils.zero_to_torch: a command that writes a checkpoint's model in a dtype."""

import argparse
from collections.abc import Sequence

from zerorun.consolidate import DTYPE_NAMES

from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_state_dict


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Writes the whole model of a checkpoint, of zerorun or of DeepSpeed, in a dtype"
    )
    parser.add_argument("checkpoint_dir", help="folder with tags")
    parser.add_argument("output_dir", help="folder for the model")
    parser.add_argument("--dtype", choices=sorted(DTYPE_NAMES), required=True)
    parser.add_argument("--max_shard_size", default="5GB", help="largest size of a file")
    parser.add_argument(
        "--safe_serialization", action="store_true", help="safetensors instead of torch's format"
    )
    parser.add_argument("-t", "--tag", help="checkpoint to read; default: the latest")
    parser.add_argument("--exclude_frozen_parameters", action="store_true")
    parser.add_argument("-d", "--debug", action="store_true", help="changes nothing here")
    given = vars(parser.parse_args(args))
    del given["debug"]
    convert_zero_checkpoint_to_state_dict(**given)


if __name__ == "__main__":
    main()
