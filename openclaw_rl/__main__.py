"""``python -m openclaw_rl`` is the command ``openclaw-rl``."""

import sys

from openclaw_rl.commands.cli import main

sys.exit(main())
