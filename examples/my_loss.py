"""A custom loss: the plain policy gradient, without clipping.

openclaw-rl serve --loss my_loss:reinforce
"""

from torch import Tensor


def reinforce(new_NK: Tensor, old_NK: Tensor, signal_NK: Tensor) -> Tensor:
    """Loss per position, from new and old log-probs and the algorithm's signal."""
    return -(signal_NK * new_NK).sum(dim=1)
