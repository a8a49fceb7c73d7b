"""What runs: the serve process, the learn process, the supervisor between them, and their parts."""
