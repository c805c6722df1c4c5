"""The conversion that neither zerorun's checkpoints nor DeepSpeed's need.

``main`` raises like every name that is not there; the module as a command says why and ends.
"""

import sys

if __name__ == "__main__":
    sys.exit(
        "ds_to_universal is not part of zerorun: any stage and number of ranks loads its "
        "checkpoints and DeepSpeed's as they are; python -m zerorun.consolidate writes Hugging "
        "Face's files"
    )
