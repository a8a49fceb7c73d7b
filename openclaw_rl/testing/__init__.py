"""Fakes and test tools, for our own tests and those of packages that build on this one.

``ScriptedEngine`` keeps the Engine protocol without a model: it says what it was told to say, as
slowly as asked, and fails or pauses on request. ``scripted_system`` is the real wiring around it.
``ScriptedTrainer`` keeps the Trainer protocol likewise, and ``WordJudge`` the Judge protocol.
``ServerProcess`` is the real command in a process of its own. ``wait_until`` polls with a deadline,
``skip_time`` lets time-outs pass without waiting for them.
"""

from openclaw_rl.processes.server_process import ServerProcess, clean_environment
from openclaw_rl.testing.fakes import (
    Script,
    ScriptedEngine,
    WordJudge,
    byte_tokenizer,
    scripted_system,
    tiny_model,
)
from openclaw_rl.testing.gates import FiniteGate
from openclaw_rl.testing.process import command
from openclaw_rl.testing.trainer import ScriptedTrainer
from openclaw_rl.testing.waiting import skip_time, until, wait_until

__all__ = [
    "FiniteGate",
    "Script",
    "ScriptedEngine",
    "ScriptedTrainer",
    "ServerProcess",
    "WordJudge",
    "byte_tokenizer",
    "clean_environment",
    "command",
    "scripted_system",
    "skip_time",
    "tiny_model",
    "until",
    "wait_until",
]
