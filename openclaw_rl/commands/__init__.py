"""The commands of ``openclaw-rl``, one file each, and ``cli.py``, which parses them all."""
