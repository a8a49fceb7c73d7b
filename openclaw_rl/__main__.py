"""The command ``openclaw-rl``, also as ``python -m openclaw_rl``. Ctrl-C is quiet from the start."""

import sys


def run() -> int:
    try:
        from openclaw_rl.commands.cli import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())
