"""Imported once, by the process that all others of the soak are forked from."""

import uvicorn

import openclaw_rl.commands.backup
import openclaw_rl.commands.data
import openclaw_rl.engine.remote
import openclaw_rl.serve.listen
import tests.soak.actors

__all__ = ["openclaw_rl", "tests", "uvicorn"]
