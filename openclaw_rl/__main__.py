"""The command ``openclaw-rl``, also as ``python -m openclaw_rl``. Ctrl-C never prints a traceback."""

import sys


def run() -> int:
    try:
        from openclaw_rl.commands.cli import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())
