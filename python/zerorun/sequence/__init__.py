"""Sequence parallelism: several ranks share each sequence, so that sequences can be longer.

The method is Ulysses (Jacobs et al., arXiv 2309.14509). Between attention layers a rank has its
part of the tokens; within attention it has all tokens for its part of the heads. :func:`start`
sets how many ranks share a sequence, :func:`use_with_transformers` adds the exchange to Hugging
Face models, and :class:`SequenceLoader` splits a loader's batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerorun.lazy_names import lazy_names
from zerorun.sequence.groups import SequenceGroups, current, data_parallel_size, start

if TYPE_CHECKING:
    from zerorun.sequence.attention import SharedAttention, attend, use_with_transformers
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

__getattr__ = lazy_names(
    __name__,
    {
        "sequence.attention": "SharedAttention attend use_with_transformers",
        "sequence.loader": "SequenceLoader mean_over_sequence",
    },
)
