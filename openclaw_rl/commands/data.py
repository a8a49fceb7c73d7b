"""``openclaw-rl data``: export, import, check and prune turns."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from openclaw_rl.capture import transfer
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.old_samples import name_old_turns
from openclaw_rl.capture.personal import export_person
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.prune import keep_unfinished, prune
from openclaw_rl.capture.redact import create_redactor
from openclaw_rl.capture.search import renew_index
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.commands import imports
from openclaw_rl.config import Config
from openclaw_rl.processes.exports import PERSON, SESSIONS, Exports
from openclaw_rl.processes.parts import open_learn_ledger, open_serve_ledger
from openclaw_rl.text import plural
from openclaw_rl.users import Users


def run(options: argparse.Namespace, config: Config) -> int:
    serve_ledger = open_serve_ledger(config)
    try:
        if options.action == "check":
            problems = serve_ledger.check_integrity()
            print("\n".join(problems) or "the ledger is sound")
            return 1 if problems else 0
        if options.action == "prune":
            print(_prune(options, config, serve_ledger))
        elif options.action == "export" and options.user:
            return _export_person(options, config, serve_ledger)
        elif options.action == "export":
            _export(options.file, config, serve_ledger)
        else:
            _import(options.file, config, serve_ledger)
        return 0
    finally:
        serve_ledger.close()


def _export(path: str, config: Config, serve_ledger: ServeLedger) -> None:
    if path == "-":
        number = transfer.export_sessions(serve_ledger, sys.stdout)
    else:
        with Exports(config.home).writing(Path(path), SESSIONS), open(path, "w", encoding="utf-8") as file:
            number = transfer.export_sessions(serve_ledger, file)
    print(f"{number} sessions exported", file=sys.stderr)


def _export_person(options: argparse.Namespace, config: Config, serve_ledger: ServeLedger) -> int:
    if options.file == "-":
        raise ValueError(
            "a person's archive is a zip file; say where it goes: data export ann.zip --user ann"
        )
    ledgers = Ledgers.of(serve_ledger, open_learn_ledger(config))
    try:
        person = Users.in_home(config.people).of(options.user)
        with Exports(config.home).writing(Path(options.file), PERSON):
            number = export_person(ledgers, options.user, person, Path(options.file))
    finally:
        ledgers.learn.close()
    print(f"{number} turns of {options.user} exported", file=sys.stderr)
    return 0


def _import(path: str, config: Config, serve_ledger: ServeLedger) -> None:
    """Exported sessions are imported unchanged; conversations of other programs are scored first."""
    with nullcontext(sys.stdin) if path == "-" else open(path, encoding="utf-8") as file:
        text = file.read()
    # Trajectories of other programs may also have turns, but with responses and without exact tokens.
    if '"exact"' in text or ('"turns"' in text and '"response"' not in text):
        redact = create_redactor(config.ledger.redact)
        number = transfer.import_sessions(serve_ledger, text.splitlines(), redact)
        print(f"{plural(number, 'reply', 'replies')} imported", file=sys.stderr)
    else:
        imports.store(imports.read_text(text)[1], config, serve_ledger)


def _prune(options: argparse.Namespace, config: Config, serve_ledger: ServeLedger) -> str:
    learn_ledger = open_learn_ledger(config)
    if not options.dry_run:
        name_old_turns(Ledgers.of(serve_ledger, learn_ledger))
    report = prune(
        serve_ledger,
        keep=[keep_unfinished(learn_ledger, PolicyLedger(serve_ledger, learn_ledger))],
        learn_ledger=learn_ledger,
        older_than_s=None if options.older_than is None else options.older_than * 86400,
        max_bytes=None if options.max_gb is None else int(options.max_gb * 1e9),
        dry_run=options.dry_run,
    )
    if not options.dry_run:
        renew_index(config.home, serve_ledger)
    learn_ledger.close()
    log = "" if report.logs_empty else "; somebody reads all the while: prune again to clean SQLite's log"
    return (
        f"{'would remove' if options.dry_run else 'removed'} {report.sessions} sessions with {report.turns} "
        f"turns and {report.content_rows} rows of content, {report.bytes / 1e6:.1f} MB; "
        f"{report.bytes_left / 1e6:.1f} MB stay; {report.file_bytes_freed / 1e6:.1f} MB of disk given back"
        f"{log}"
    )
