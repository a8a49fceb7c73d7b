"""A custom loss: cross entropy with the tokens that the teacher considers likely; other tokens are ignored.

openclaw-rl serve --loss my_loss:cross_entropy
"""

import torch

from openclaw_rl.types import NO_SIGNAL


def cross_entropy(new_NK: torch.Tensor, old_NK: torch.Tensor, signal_NK: torch.Tensor) -> torch.Tensor:
    """Per position, from log-probs now and then, and the algorithm's signal: here the teacher's log-probs."""
    shares_NK = torch.where(signal_NK == NO_SIGNAL, torch.zeros_like(signal_NK), signal_NK.exp())
    return -(shares_NK * new_NK).sum(dim=1)


#: In place of candidates that have no signal. A loss without it takes advantages, as ``--algo binary`` gives.
cross_entropy.padding = NO_SIGNAL
