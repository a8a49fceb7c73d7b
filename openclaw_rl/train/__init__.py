"""Training: a batch of samples becomes new weights, a gate decides whether they may serve."""
