"""A loss of one's own: the plain policy gradient, without any clipping.

openclaw-rl serve --loss my_loss:reinforce
"""

from torch import Tensor


def reinforce(new_NK: Tensor, old_NK: Tensor, signal_NK: Tensor) -> Tensor:
    """Per position, from log-probs now and then, and the algorithm's signal."""
    return -(signal_NK * new_NK).sum(dim=1)
