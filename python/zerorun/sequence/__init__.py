"""Sequence parallelism: several ranks share each sequence, so that sequences can be longer.

The method is Ulysses (Jacobs et al., arXiv 2309.14509). Between attention layers a rank has its
part of the tokens; within attention it has all tokens for its part of the heads. :func:`start`
sets how many ranks share a sequence, :func:`use_with_transformers` adds the exchange to Hugging
Face models, and :class:`SequenceLoader` splits a loader's batches.
"""

from zerorun.sequence.groups import (
    SequenceGroups,
    SharedAttention,
    attend,
    current,
    data_parallel_size,
    start,
    use_with_transformers,
)
from zerorun.sequence.loader import SequenceLoader, mean_over_sequence

__all__ = [
    "SequenceGroups",
    "SequenceLoader",
    "SharedAttention",
    "attend",
    "current",
    "data_parallel_size",
    "mean_over_sequence",
    "start",
    "use_with_transformers",
]
