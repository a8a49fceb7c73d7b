"""OpenClaw-RL: agents that get better simply by being used."""

__version__ = "0.1.0"
