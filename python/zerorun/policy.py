"""What an engine does differently for programs that were written for another library."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Policy:
    """The differences between zerorun's own engines and those of the stand-in for DeepSpeed.

    - `round_masters`: masters of 16-bit parameters begin at the parameters' rounded values.
    - `clips_as_torch`: torch.nn.utils.clip_grad_norm_ clips the engine's gradients; else it warns.
    - `pickles_objects`: a save pickles values that JSON cannot represent; else it rejects them.
    - `resumes_data`: a load puts the training data loader where it was; else the program does.
    - `optimizer_of`: the class of the engine's optimizer, by its stage; None: ZeroOptimizer.
    """

    round_masters: bool = False
    clips_as_torch: bool = True
    pickles_objects: bool = False
    resumes_data: bool = True
    optimizer_of: Callable[[int], type[Any]] | None = None
