"""What people type: one file per command of ``openclaw-rl``, and ``cli.py``, which parses them all."""
