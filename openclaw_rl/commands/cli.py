"""The command ``openclaw-rl``. Heavy imports happen inside the commands, so that help is instant."""

from __future__ import annotations

import argparse
import faulthandler
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import shtab

from openclaw_rl import __version__
from openclaw_rl.commands import import_arguments, train_arguments, user_arguments
from openclaw_rl.commands.flags import Parser, add_server, add_settings, complete_files, parse, read_config
from openclaw_rl.config import Config
from openclaw_rl.connect import CLIENTS
from openclaw_rl.evals import env, personalize, wishes
from openclaw_rl.known_names import FLAGS, METHODS, notes
from openclaw_rl.plugins import imported
from openclaw_rl.scopes import check_scope
from openclaw_rl.types import EVERYONE

#: In the text of an OSError; the words after it say the same.
_ERROR_NUMBER = re.compile(r"\[Errno -?\d+\] ")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a user error is one line on stderr and exit code 2."""
    options = parse(_parser(), arguments)
    # Files that commands write contain users' data or were trained on it, so others must not read them.
    mask = os.umask(0o077)
    try:
        code = int(options.run(options) or 0)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _reader_left()
    except (ValueError, OSError) as error:
        print(f"openclaw-rl: {_ERROR_NUMBER.sub('', str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        os.umask(mask)


def _reader_left() -> int:
    """The reader of our output closed the pipe (``| head``); also silences Python's flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def _parser() -> Parser:
    parser = Parser(
        prog="openclaw-rl",
        description="Serve a language model that learns from how people react to its replies.",
        epilog="Start here: openclaw-rl setup, then openclaw-rl start.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = _command(commands, "serve", "serve a model and learn from reactions to its replies", _serve)
    add_settings(serve)
    _add_run(commands)
    learn = _command(commands, "learn", "run only the learning process, beside a running server", _learn)
    add_settings(learn)
    train = _command(commands, "train", "train on tasks in an environment", _terminal("train", "run"))
    train_arguments.add_arguments(train)
    add_settings(train)
    _add_eval(commands)
    _add_background(commands)
    _add_terminal(commands)
    doctor = _command(commands, "doctor", "check this machine", _doctor)
    add_settings(doctor)

    _add_keys(commands)
    people = "manage people: their keys, groups and limits"
    user_arguments.add_arguments(_command(commands, "users", people, _terminal("users", "run")))
    _add_connect(commands)
    _add_policy(commands)
    _add_data(commands)
    return parser


def _add_eval(commands: Any) -> None:
    evaluate = _command(commands, "eval", "evaluate the judge, learning, or agents on tasks", _eval)
    evaluate.usage = "%(prog)s {judge,personalize,wishes,env} [options]"
    evaluate.add_argument("what", choices=("judge", "personalize", "wishes", "env"))
    complete_files(
        evaluate.add_argument(
            "--cases", type=Path, metavar="FILE.jsonl", help="labelled cases [the test half]"
        )
    )
    evaluate.add_argument("--limit", type=int, metavar="N", help="only the first N cases")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
    personalize.add_arguments(evaluate)
    wishes.add_arguments(evaluate)
    env.add_arguments(evaluate)
    add_settings(evaluate)


def _add_keys(commands: Any) -> None:
    keys = _command(commands, "keys", "list, add or remove API keys, one per user", _terminal("keys", "run"))
    keys.add_argument("action", choices=("list", "add", "remove"))
    keys.add_argument("user", nargs="?", help="the user the key names")
    keys.add_argument(
        "--same-person",
        action="store_true",
        help="add: allow a name that was used before, for the same person",
    )
    add_settings(keys, only=("home",))


def _add_connect(commands: Any) -> None:
    link = _command(commands, "connect", "configure a client to use this server", _terminal("connect", "run"))
    link.add_argument("client", choices=tuple(CLIENTS), help=", ".join(c.title for c in CLIENTS.values()))
    link.add_argument(
        "--write", action="store_true", help="write the client's settings, after showing the change"
    )
    link.add_argument("--undo", action="store_true", help="restore the client's old settings")
    link.add_argument(
        "--context", type=int, metavar="TOKENS", help="context length, if the server does not know it"
    )
    link.add_argument("--user", default="default", help="the user whose key the client gets [default]")
    add_settings(link, only=_CONNECT)


def _add_policy(commands: Any) -> None:
    policy = _command(commands, "policy", "list, choose, compare or export versions of the model", _policy)
    policy.add_argument("action", choices=("list", "show", "diff", "promote", "rollback", "export", "prune"))
    policy.add_argument("versions", nargs="*", type=int, metavar="VERSION")
    policy.add_argument("--json", action="store_true", help="print JSON")
    policy.add_argument(
        "--format", choices=("peft", "merged", "gguf"), default="peft", help="format of an export [peft]"
    )
    policy.add_argument(
        "--scope", type=check_scope, default=EVERYONE, help="the scope whose versions are meant [everyone]"
    )
    complete_files(policy.add_argument("--to", metavar="PATH", help="folder or file to export to"))
    policy.add_argument("--keep", type=int, metavar="N", help="prune: keep the last N versions that served")
    add_settings(policy, only=("home", "ledger_url", "model", "policies"))


def _add_data(commands: Any) -> None:
    data = _command(commands, "data", "export, import, check or prune the stored conversations", _data)
    data.add_argument("action", choices=("export", "import", "check", "prune"))
    complete_files(
        data.add_argument("file", nargs="?", default="-", help="JSONL file; - is standard input or output")
    )
    data.add_argument("--user", metavar="NAME", help="export everything about this person, as a zip file")
    data.add_argument("--older-than", type=float, metavar="DAYS", help="prune sessions idle for longer")
    data.add_argument("--max-gb", type=float, metavar="GB", help="prune the oldest sessions above this size")
    data.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    add_settings(data, only=("home", "ledger_url", *_SCORING))
    brought = _command(
        commands,
        "import",
        "import conversations of other programs, or an adapter",
        _terminal("imports", "run"),
    )
    import_arguments.add_arguments(brought)
    add_settings(brought, only=(*import_arguments.SETTINGS, *_SCORING))


def _add_run(commands: Any) -> None:
    """``serve`` with the flag names of another launcher."""
    run = _command(commands, "run", "serve, with the flag names of the reference launcher", _run)
    run.add_argument(
        "--method", choices=tuple(METHODS), help="; ".join(f"{m}: --algo {a}" for m, a in METHODS.items())
    )
    for flag, name in FLAGS.items():
        run.add_argument(flag, dest=name, default=None, help=f"--{name.replace('_', '-')}")
    add_settings(run)


#: Settings for scoring imported conversations.
_SCORING = ("engine", "engine_options", "model", "renderer", "device", "kernel", "num_threads")
_WISHES = ("list", "edit", "pause", "resume", "note", "unnote", "skill")
_CONNECT = ("home", "host", "port", "model", "served_model_name", "default_max_tokens", "store_false")


def _add_background(commands: Any) -> None:
    setup = _command(commands, "setup", "choose a model and write the settings", _terminal("setup", "run"))
    setup.add_argument("-y", "--yes", action="store_true", help="ask nothing; use the recommended settings")
    setup.add_argument("--model", help="use this model")
    add_settings(setup, only=("home",))
    start = _command(commands, "start", "serve in the background", _terminal("background", "start"))
    add_settings(start)
    stop = _command(commands, "stop", "stop the server of this data folder", _terminal("background", "stop"))
    add_settings(stop, only=("home", "drain_timeout_s"))
    logs = _command(
        commands, "logs", "show the log of the background server", _terminal("background", "logs")
    )
    logs.add_argument("-f", "--follow", action="store_true", help="keep following until Ctrl-C")
    logs.add_argument("-n", "--lines", type=int, default=40, metavar="N", help="the last N lines [40]")
    add_settings(logs, only=("home",))
    for name, text in (
        ("backup", "write the data folder to one file, also while serving"),
        ("restore", "read a backup into an empty data folder"),
    ):
        command = _command(commands, name, text, _terminal("backup", name))
        complete_files(command.add_argument("file", metavar="FILE.tar.gz"))
        add_settings(command, only=("home", "ledger_url", "policies"))


def _add_terminal(commands: Any) -> None:
    """Commands that talk to a running server."""
    status = _command(commands, "status", "show whether it learns, and what", _terminal("status", "run"))
    status.add_argument(
        "--all", action="store_true", help="also show traffic, queues and every stage of learning"
    )
    status.add_argument("--json", action="store_true", help="print the API's JSON")
    status.add_argument("--watch", action="store_true", help="refresh every second, until Ctrl-C")
    chat = _command(
        commands, "chat", "chat with the served model and rate its replies", _terminal("chat", "run")
    )
    chat.add_argument("--off-the-record", action="store_true", help="store nothing and learn nothing")
    sessions = _command(
        commands, "sessions", "list conversations, or the turns of one", _terminal("sessions", "sessions")
    )
    sessions.add_argument("session", nargs="?", help="id of a session, to list its turns")
    sessions.add_argument("--search", metavar="WORDS", help="only sessions that contain these words")
    sessions.add_argument("--limit", type=int, default=20, metavar="N", help="list at most N [20]")
    turn = _command(
        commands, "turn", "show one reply: text, verdict, what was learned", _terminal("sessions", "turn")
    )
    verdict = _command(
        commands, "verdict", "show the verdict on one reply, and why", _terminal("sessions", "verdict")
    )
    for command in (turn, verdict):
        command.add_argument("id", help="the reply's id")
    for command in (sessions, turn, verdict):
        command.add_argument("--json", action="store_true", help="print the API's JSON")
    exclude = _command(
        commands, "exclude", "never learn from a turn or a session", _terminal("exclude", "exclude")
    )
    include = _command(commands, "include", "undo an exclusion", _terminal("exclude", "include"))
    for command in (exclude, include):
        command.add_argument("what", choices=("turn", "session"))
        command.add_argument("id", help="id of the turn or session")
    forget = _command(commands, "forget", "erase something and unlearn it", _terminal("forget", "run"))
    forget.add_argument("what", choices=("turn", "session", "wish", "user"))
    forget.add_argument("id", help="id of the turn, session or wish, or the user's name")
    forget.add_argument("--json", action="store_true", help="print the receipt")
    add_settings(forget, only=("home", "ledger_url", "policies"))
    wished = _command(
        commands, "wishes", "list, reword or pause what people asked for", _terminal("wishes", "run")
    )
    wished.add_argument("action", nargs="?", choices=_WISHES, default="list")
    wished.add_argument("id", nargs="?", help="id of a wish; to erase one: openclaw-rl forget wish ID")
    wished.add_argument("text", nargs="?", help="edit: the new text")
    to = wished.add_argument("--to", type=Path, metavar="FOLDER", help="skill: write FOLDER/SKILL.md")
    to.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    wished.add_argument("--undo", action="store_true", help="skill: take FOLDER/SKILL.md back")
    wished.add_argument("--json", action="store_true", help="print the API's JSON")
    told = _command(
        commands, "mcp", "run an MCP server: what was learned, as tools for agents", _terminal("mcp", "run")
    )
    told.add_argument(
        "--skill", action="store_true", help="print a SKILL.md that describes the tools to agents"
    )
    for command in (status, chat, sessions, turn, verdict, exclude, include, wished, told):
        add_server(command)
    completion = _command(commands, "completion", "print a completion script for your shell", _completion)
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _terminal(module: str, name: str) -> Any:
    """A command of ``openclaw_rl.commands``, imported when it runs."""

    def run(options: argparse.Namespace) -> int:
        command = imported(f"openclaw_rl.commands.{module}:{name}")
        return int(command(options, read_config(options)))

    return run


def _completion(options: argparse.Namespace) -> None:
    print(shtab.complete(_parser(), options.shell))


def _command(commands: Any, name: str, text: str, run: Any) -> Parser:
    command: Parser = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run, parser=command)
    return command


def _serve(options: argparse.Namespace) -> None:
    import asyncio

    config = _configure(options)
    for line in notes(os.environ):
        print(f"note: {line}", file=sys.stderr, flush=True)
    from openclaw_rl.capabilities import check_choices
    from openclaw_rl.processes import serving

    check_choices(config)

    _log_crashes()
    asyncio.run(serving.serve(config, lambda line: print(line, flush=True)))


def _run(options: argparse.Namespace) -> None:
    if options.method and options.algo:
        raise ValueError(f"--method {options.method} is --algo {METHODS[options.method]}; name one of them")
    options.algo = options.algo or METHODS.get(options.method)
    _serve(options)


def _learn(options: argparse.Namespace) -> None:
    import asyncio

    config = _configure(options)
    from openclaw_rl.capabilities import check_choices
    from openclaw_rl.processes import learning

    check_choices(config)

    async def run() -> None:
        work = asyncio.create_task(learning.learn(config))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        with suppress(asyncio.CancelledError):
            await work

    _log_crashes()
    asyncio.run(run())


def _log_crashes() -> None:
    """Print a traceback if compiled code crashes."""
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

    return judge.run(options, config)


def _configure(options: argparse.Namespace) -> Config:
    import logging

    config = read_config(options)
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if config.ledger.redact != "off":
        from openclaw_rl.secret_scan import mask_logs

        mask_logs()
    # httpx logs every request's URL, which does not help.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return config


def _doctor(options: argparse.Namespace) -> int:
    from openclaw_rl.commands.doctor import print_doctor, run_doctor

    return print_doctor(run_doctor(read_config(options)))


def _policy(options: argparse.Namespace) -> int:
    from openclaw_rl.commands import policy

    return policy.run(options, read_config(options))


def _data(options: argparse.Namespace) -> int:
    from openclaw_rl.commands import data

    return data.run(options, read_config(options))
