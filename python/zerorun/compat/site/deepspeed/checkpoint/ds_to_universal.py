"""The conversion that zerorun's checkpoints do not need."""

import sys
from typing import Any


def main(_args: Any = None) -> None:
    sys.exit(
        "ds_to_universal is not part of zerorun: any stage and number of ranks loads its "
        "checkpoints as they are; python -m zerorun.consolidate writes Hugging Face's files"
    )


if __name__ == "__main__":
    main()
