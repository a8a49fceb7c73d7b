"""Fakes and test tools, for our own tests and those of packages that build on this one.

``ScriptedEngine`` implements the Engine protocol without a model: it returns scripted replies, with delays,
pauses and failures on request. ``scripted_system`` is the real wiring around it. ``ServerProcess`` runs the
real command in its own process. ``wait_until`` polls with a deadline.
"""

from openclaw_rl.testing.fakes import (
    Script,
    ScriptedEngine,
    WordJudge,
    byte_tokenizer,
    scripted_system,
    tiny_model,
)
from openclaw_rl.testing.process import ServerProcess, clean_environment, command
from openclaw_rl.testing.waiting import until, wait_until

__all__ = [
    "Script",
    "ScriptedEngine",
    "ServerProcess",
    "WordJudge",
    "byte_tokenizer",
    "clean_environment",
    "command",
    "scripted_system",
    "tiny_model",
    "until",
    "wait_until",
]
