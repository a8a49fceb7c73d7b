"""``openclaw-rl import``: conversations of other programs, and adapters trained elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from openclaw_rl.capture.normalise import strip_ephemeral
from openclaw_rl.capture.redact import create_redactor
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.commands import trajectories
from openclaw_rl.config import Config
from openclaw_rl.imports import FORMATS, read_text
from openclaw_rl.models import fingerprint
from openclaw_rl.processes.parts import (
    build_engine,
    build_renderer,
    engine_socket,
    model_folder,
    open_serve_ledger,
)
from openclaw_rl.scopes import PolicyScopes
from openclaw_rl.serve.auth import DEFAULT_USER, KeyRing
from openclaw_rl.text import plural
from openclaw_rl.types import Engine, Json, TurnRecord
from openclaw_rl.users import Users

__all__ = ["read_text", "run", "store"]
_NAMES = (".json", ".jsonl")


def run(options: argparse.Namespace, config: Config) -> int:
    if options.paths[0] == "adapter":
        from openclaw_rl.commands.import_adapter import import_adapter

        return import_adapter(options, config)
    found = [{**each, "user": each.get("user") or options.user} for each in _read(options.paths)]
    serve_ledger = open_serve_ledger(config)
    try:
        store(found, config, serve_ledger)
    finally:
        serve_ledger.close()
    return 0


def _read(paths: Iterable[str]) -> list[Json]:
    """In a folder, unreadable files are skipped; a named file must be readable."""
    found: list[Json] = []
    formats, unknown = Counter[str](), 0
    for path in map(Path, paths):
        files = sorted(f for f in path.rglob("*") if f.suffix in _NAMES) if path.is_dir() else [path]
        for file in files:
            try:
                name, read = read_text(file.read_text(encoding="utf-8"))
            except ValueError as error:
                if not path.is_dir():
                    raise ValueError(f"{file}: {error}") from None
                unknown += 1
                continue
            formats[FORMATS[name].title] += len(read)
            found += read
    if not found:
        raise ValueError(f"no conversation was found in {', '.join(paths)}")
    said = ", ".join(f"{plural(number, 'conversation')} of {title}" for title, number in formats.items())
    others = f"; {plural(unknown, 'other file')} left alone" if unknown else ""
    print(f"{said}{others}", file=sys.stderr)
    return found


def store(conversations: list[Json], config: Config, serve_ledger: ServeLedger) -> None:
    """Store new conversations, scored with the base model."""
    told = [{**each, "messages": [_told(message) for message in each["messages"]]} for each in conversations]
    new = [each for each in told if not serve_ledger.turn_summaries(trajectories.session_of(each))]
    number, left_out = asyncio.run(_store(new, config, serve_ledger)) if new else (0, 0)
    said, known = [f"{plural(number, 'reply', 'replies')} imported"], len(told) - len(new)
    if known:
        said.append(f"{plural(known, 'conversation')} {'was' if known == 1 else 'were'} there already")
    if left_out:
        said.append(f"{plural(left_out, 'reply', 'replies')} too long for the model's context left out")
    print("; ".join(said), file=sys.stderr)
    if number:
        print("While a server runs, they are judged and their complaints are learned.", file=sys.stderr)


def _told(message: Json) -> Json:
    """The message as the user wrote it, without what the program put in front of it."""
    return (
        message if message["role"] != "user" else {**message, "content": strip_ephemeral(message["content"])}
    )


async def _store(conversations: list[Json], config: Config, ledger: ServeLedger) -> tuple[int, int]:
    path = model_folder(config)
    renderer, redact = build_renderer(config, path), create_redactor(config.ledger.redact)
    keys, users = KeyRing.in_home(config.people), Users.in_home(config.people)
    scopes = PolicyScopes(config.serve.policy_scope, DEFAULT_USER, users, lambda: keys.users)
    number = left_out = 0
    async with _scoring(config, path) as engine:
        for each in conversations:
            scope = scopes.of(str(each.get("user") or DEFAULT_USER))
            entries, lost = await trajectories.score_conversation(
                each, engine, renderer, fingerprint(path), scope
            )
            kept = [kept for entry in entries for kept in redact(entry)]
            await asyncio.to_thread(ledger.append, kept)
            number += sum(isinstance(entry, TurnRecord) for entry in entries)
            left_out += lost
    return number, left_out


@asynccontextmanager
async def _scoring(config: Config, path: Path) -> AsyncIterator[Engine]:
    """The serving engine, if one is running; otherwise a temporary one."""
    from openclaw_rl.engine.remote import EngineGone, RemoteEngine

    remote = RemoteEngine(engine_socket(config))
    engine: Engine = remote
    try:
        await remote.connect()
    except EngineGone:
        await remote.close()
        engine = await asyncio.to_thread(build_engine, config, path)
    try:
        yield engine
    finally:
        await engine.close()
