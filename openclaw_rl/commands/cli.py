"""The command ``openclaw-rl``. Heavy imports happen inside the commands, so help is instant."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import shtab

from openclaw_rl import __version__
from openclaw_rl.config import Config, fields, load_config
from openclaw_rl.connect import CLIENTS
from openclaw_rl.evals import env, personalize, wishes
from openclaw_rl.scopes import check_scope
from openclaw_rl.types import EVERYONE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a user's mistake is one line on stderr and exit code 2."""
    options = _parser().parse_args(arguments)
    # Whatever a command writes holds people's words, or was learned from them: nobody else's to read.
    mask = os.umask(0o077)
    try:
        return int(options.run(options) or 0)
    except (ValueError, OSError) as error:
        print(f"openclaw-rl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        os.umask(mask)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openclaw-rl", description="Agents that get better by being used.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = _command(commands, "serve", "serve the model and learn from what it is used for", _serve)
    _add_settings(serve)
    learn = _command(commands, "learn", "only the learn process, beside a running server", _learn)
    _add_settings(learn)
    evaluate = _command(commands, "eval", "measure the parts", _eval)
    evaluate.add_argument("what", choices=("judge", "personalize", "wishes", "env"))
    _file(
        evaluate.add_argument(
            "--cases", type=Path, metavar="FILE.jsonl", help="labelled cases [the test half]"
        )
    )
    evaluate.add_argument("--limit", type=int, metavar="N", help="only the first N cases")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
    personalize.add_arguments(evaluate)
    wishes.add_arguments(evaluate)
    env.add_arguments(evaluate)
    _add_settings(evaluate)
    _add_terminal(commands)
    doctor = _command(commands, "doctor", "what this machine lacks, and the fix", _doctor)
    _add_settings(doctor)

    keys = _command(commands, "keys", "API keys, one per user", _keys)
    keys.add_argument("action", choices=("list", "add", "remove"))
    keys.add_argument("user", nargs="?", help="the user the key names")
    keys.add_argument("--same-person", action="store_true", help="add: a name that was used before")
    _add_settings(keys, only=("home",))

    _add_users(commands)
    link = _command(commands, "connect", "point a client at this server", _connect)
    link.add_argument("client", choices=tuple(CLIENTS), help=", ".join(c.title for c in CLIENTS.values()))
    link.add_argument("--write", action="store_true", help="change the client's settings; shown, and kept")
    link.add_argument("--undo", action="store_true", help="take that back")
    link.add_argument("--context", type=int, metavar="TOKENS", help="the model's, where it is not known")
    link.add_argument("--user", default="default", help="whose key the client gets [default]")
    _add_settings(link, only=_CONNECT)

    policy = _command(commands, "policy", "versions of the weights: look, choose, export", _policy)
    policy.add_argument("action", choices=("list", "show", "diff", "promote", "rollback", "export", "prune"))
    policy.add_argument("versions", nargs="*", type=int, metavar="VERSION")
    policy.add_argument("--json", action="store_true", help="print JSON")
    policy.add_argument("--format", choices=("peft", "merged", "gguf"), default="peft", help="of an export")
    policy.add_argument("--scope", type=check_scope, default=EVERYONE, help="whose versions [everyone]")
    _file(policy.add_argument("--to", metavar="PATH", help="where an export goes"))
    policy.add_argument("--keep", type=int, default=8, metavar="N", help="prune keeps the last N served [8]")
    _add_settings(policy, only=("home", "ledger_url", "model", "policies"))

    data = _command(commands, "data", "captured turns in and out", _data)
    data.add_argument("action", choices=("export", "import", "check", "prune"))
    _file(data.add_argument("file", nargs="?", default="-", help="JSONL file; - is standard input or output"))
    data.add_argument("--user", metavar="NAME", help="export all about this person, as a zip file")
    data.add_argument("--older-than", type=float, metavar="DAYS", help="prune sessions idle for longer")
    data.add_argument("--max-gb", type=float, metavar="GB", help="prune the oldest sessions above this size")
    data.add_argument("--dry-run", action="store_true", help="prune nothing, only say what would go")
    _add_settings(data, only=("home", "ledger_url"))
    return parser


_CONNECT = ("home", "host", "port", "model", "served_model_name", "default_max_tokens", "store_false")


def _add_users(commands: Any) -> None:
    users = _command(
        commands, "users", "people: keys, groups, limits, what is kept", _terminal("users", "run")
    )
    actions = users.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_settings(actions.add_parser("list", help="everybody who has a key"), only=("home",))
    for name, text in (
        ("add", "make a key for somebody"),
        ("group", "let somebody share a group's policy"),
        ("quota", "limit what somebody may use"),
        ("record", "keep what somebody says, or nothing of it"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("name", help="the user")
        if name == "group":
            action.add_argument("group", help="its name, or none")
        elif name == "quota":
            action.add_argument("--requests-per-minute", metavar="N", help="a number, or none")
            action.add_argument(
                "--tokens-per-day", metavar="N", help="prompts and replies; a number, or none"
            )
        elif name == "record":
            action.add_argument("record", choices=("on", "off"))
        _add_settings(action, only=("home",))


def _add_terminal(commands: Any) -> None:
    """What talks to a running server."""
    status = _command(commands, "status", "what a running server is doing", _terminal("status", "run"))
    status.add_argument("--json", action="store_true", help="print the API's own JSON")
    status.add_argument("--watch", action="store_true", help="again every second, until Ctrl-C")
    chat = _command(
        commands, "chat", "talk to the served model, and tell it what you think", _terminal("chat", "run")
    )
    chat.add_argument("--off-the-record", action="store_true", help="nothing is kept or learned from")
    sessions = _command(
        commands, "sessions", "conversations, or one of them", _terminal("sessions", "sessions")
    )
    sessions.add_argument("session", nargs="?", help="id of a session, to list its turns")
    sessions.add_argument("--search", metavar="WORDS", help="only sessions where this was said")
    sessions.add_argument("--limit", type=int, default=20, metavar="N", help="at most so many [20]")
    turn = _command(
        commands, "turn", "one turn: words, verdict, what was learned", _terminal("sessions", "turn")
    )
    verdict = _command(commands, "verdict", "what was thought of one reply", _terminal("sessions", "verdict"))
    for command in (turn, verdict):
        command.add_argument("id", help="the reply's id")
    for command in (sessions, turn, verdict):
        command.add_argument("--json", action="store_true", help="print the API's own JSON")
    exclude = _command(
        commands, "exclude", "do not learn from a turn or a session", _terminal("exclude", "exclude")
    )
    include = _command(commands, "include", "take an exclusion back", _terminal("exclude", "include"))
    for command in (exclude, include):
        command.add_argument("what", choices=("turn", "session"))
        command.add_argument("id", help="of that turn or session")
    forget = _command(commands, "forget", "erase something and unlearn it", _terminal("forget", "run"))
    forget.add_argument("what", choices=("turn", "session", "wish", "user"))
    forget.add_argument("id", help="of that turn, session or wish, or the user's name")
    _add_settings(forget, only=("home", "ledger_url", "policies"))
    wished = _command(
        commands, "wishes", "what people asked for, for good: list, edit, pause", _terminal("wishes", "run")
    )
    wished.add_argument("action", nargs="?", choices=("list", "edit", "pause", "resume"), default="list")
    wished.add_argument("id", nargs="?", help="of a wish; 'forget wish ID' makes it go for good")
    wished.add_argument("text", nargs="?", help="edit: its new words")
    wished.add_argument("--json", action="store_true", help="print the API's own JSON")
    for command in (status, chat, sessions, turn, verdict, exclude, include, wished):
        _add_settings(command, only=("home",))
    completion = _command(commands, "completion", "a script for your shell's completion", _completion)
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _terminal(module: str, name: str) -> Any:
    """A command of ``openclaw_rl.commands``, imported when it runs."""

    def run(options: argparse.Namespace) -> int:
        found = getattr(import_module(f"openclaw_rl.commands.{module}"), name)
        return int(found(options, _config(options)))

    return run


def _completion(options: argparse.Namespace) -> None:
    print(shtab.complete(_parser(), options.shell))


def _command(commands: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    return command


def _file(argument: argparse.Action) -> None:
    """Shells complete it with file names."""
    argument.complete = shtab.FILE  # type: ignore[attr-defined]


def _add_settings(command: argparse.ArgumentParser, only: Sequence[str] | None = None) -> None:
    """One flag per setting, straight from the config tree."""
    _file(
        command.add_argument(
            "--config", type=Path, help="TOML file (default: config.toml in the data folder)"
        )
    )
    for section, name, field in fields():
        if only is not None and name not in only:
            continue
        flag = "--" + name.replace("_", "-")
        text = f"{field.description} [{field.default}]".replace("%", "%%")
        if field.annotation is bool:
            command.add_argument(
                flag, dest=name, action=argparse.BooleanOptionalAction, default=None, help=text
            )
        else:
            metavar = (section or name).upper() if section is None else name.split("_")[-1].upper()
            command.add_argument(flag, dest=name, default=None, metavar=metavar, help=text)


def _config(options: argparse.Namespace) -> Config:
    names = [name for _, name, _ in fields()]
    return load_config({name: getattr(options, name, None) for name in names}, file=options.config)


def _serve(options: argparse.Namespace) -> None:
    import asyncio

    config = _configure(options)
    from openclaw_rl.processes import serving

    _log_crashes()
    asyncio.run(serving.serve(config, lambda line: print(line, flush=True)))


def _learn(options: argparse.Namespace) -> None:
    import asyncio
    import signal

    config = _configure(options)
    from openclaw_rl.processes import learning

    async def run() -> None:
        work = asyncio.create_task(learning.learn(config))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        with suppress(asyncio.CancelledError):
            await work

    _log_crashes()
    asyncio.run(run())


def _log_crashes() -> None:
    """A crash in compiled code says where it was, before the process is gone."""
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)


def _eval(options: argparse.Namespace) -> int:
    config = _configure(options)
    if options.what == "personalize":
        from openclaw_rl.evals.personalize import plan

        return plan.run(options, config.home)
    if options.what == "wishes":
        from openclaw_rl.evals.wishes import plan as wish_plan

        return wish_plan.run(options, config.home)
    if options.what == "env":
        from openclaw_rl.evals.env import plan as env_plan

        return env_plan.run(options, config.home)
    from openclaw_rl.evals import judge

    settings = config.judge
    return judge.run(
        argparse.Namespace(
            cases=options.cases,
            limit=options.limit,
            json=options.json,
            judge=settings.judge,
            model=settings.judge_model or (None if settings.judge == "endpoint" else config.engine.model),
            votes=settings.majority_vote_n,
            threshold=settings.majority_vote_threshold,
            base_url=settings.judge_url or "",
        )
    )


def _configure(options: argparse.Namespace) -> Config:
    import logging

    config = _config(options)
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if config.ledger.redact != "off":
        from openclaw_rl.secret_scan import mask_logs

        mask_logs()
    # Their request lines hold addresses and nothing that helps.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return config


def _doctor(options: argparse.Namespace) -> int:
    from openclaw_rl.commands.doctor import print_doctor, run_doctor

    config = _config(options)
    checks = run_doctor(
        config.home,
        model=config.engine.model,
        host=config.serve.host,
        port=config.serve.port,
        key_file=config.home / "keys.json",
        database_url=config.ledger.ledger_url or "",
    )
    return print_doctor(checks)


def _keys(options: argparse.Namespace) -> None:
    from openclaw_rl.serve.auth import KeyRing

    ring = KeyRing(_config(options).home / "keys.json")
    if options.action == "list":
        for user in ring.users:
            print(f"{user}\t{ring.key_of(user)}")
        return
    if not options.user:
        raise ValueError(f"keys {options.action} needs a user name")
    if options.action == "add":
        print(ring.add(options.user, options.same_person))
    else:
        ring.remove(options.user)


def _connect(options: argparse.Namespace) -> None:
    from openclaw_rl import connect
    from openclaw_rl.connect.client import Server
    from openclaw_rl.models import short_name
    from openclaw_rl.serve.auth import KeyRing
    from openclaw_rl.serve.listen import announced

    config = _config(options)
    ring = KeyRing.in_home(config.home)
    key = ring.key_of(options.user)
    if key is None:
        raise ValueError(f"user {options.user!r} has no key; make one: openclaw-rl keys add {options.user}")
    name = config.serve.served_model_name or short_name(config.engine.model)
    url = announced(config.home) or f"http://{config.serve.host}:{config.serve.port}"
    known = {"model": name, "max_tokens": config.serve.default_max_tokens, **_served(url, key)}
    known["keeps_store_false"] = config.serve.store_false == "not-retrievable"
    if options.context:
        known["context_length"] = options.context
    connect.run(options.client, Server(url, key, **known), print, write=options.write, undo=options.undo)


def _served(url: str, key: str) -> dict[str, Any]:
    """What a running server says it serves; nothing if none answers."""
    import httpx

    from openclaw_rl.connect.client import ROOMY

    headers = {"authorization": f"Bearer {key}"}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=5) as client:
            status = client.get("/v1/status").raise_for_status().json()
            length = status["engine"]["context_length"]
            if length:
                return {"model": status["model"], "context_length": length}
            # Another server holds the model, and nobody says how much room it has.
            names = [model["id"] for model in client.get("/v1/models").raise_for_status().json()["data"]]
    except (httpx.HTTPError, ValueError):
        return {}
    model = status["model"] if status["model"] in names or not names else names[0]
    return {"model": model, "context_length": ROOMY, "max_tokens": ROOMY // 4}


def _policy(options: argparse.Namespace) -> int:
    from openclaw_rl.commands import policy

    return policy.run(options, _config(options))


def _data(options: argparse.Namespace) -> int:
    from openclaw_rl.commands import data

    return data.run(options, _config(options))
