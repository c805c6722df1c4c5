"""The conversion that neither zerorun's checkpoints nor DeepSpeed's need."""

import sys
from typing import Any


def main(_args: Any = None) -> None:
    sys.exit(
        "ds_to_universal is not part of zerorun: any stage and number of ranks loads its "
        "checkpoints and DeepSpeed's as they are; python -m zerorun.consolidate writes Hugging "
        "Face's files"
    )


if __name__ == "__main__":
    main()
