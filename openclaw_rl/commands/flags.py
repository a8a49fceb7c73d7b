"""Flags made from the settings, and one-line errors that suggest what was meant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import shtab

from openclaw_rl.config import Config, fields, load_config
from openclaw_rl.errors import did_you_mean
from openclaw_rl.known_names import MOVED_NAMES, MOVED_SWITCHES

_MISSING = "the following arguments are required: "


class Parser(argparse.ArgumentParser):
    """argparse without the usage text above errors."""

    def error(self, message: str) -> NoReturn:
        choices = [a for a in self._actions if a.choices and not a.option_strings and a.nargs is None]
        if message.startswith(_MISSING) and choices:
            what = str(choices[0].metavar or choices[0].dest)
            message = f"{what} is missing; known: {', '.join(map(str, choices[0].choices or ()))}"
        end = " See" if message.endswith("?") else "; see"
        self.exit(2, f"openclaw-rl: {message}{end} {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        known = None if action.choices is None else [str(choice) for choice in action.choices]
        if known is not None and value not in known:
            what = str(action.metavar or action.dest).lower()
            raise argparse.ArgumentError(
                None, f"unknown {what} {value!r}; known: {', '.join(known)}{did_you_mean(value, known)}"
            )


def parse(parser: Parser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The error for an unknown flag suggests the closest flag of the same command."""
    first = next(iter(sys.argv[1:] if arguments is None else arguments), "")
    if first.startswith("-"):  # otherwise it would be the missing command that is reported
        _refuse_unknown(parser, first)
    options, rest = parser.parse_known_args(arguments)
    if rest:
        command: Parser = getattr(options, "parser", parser)
        _refuse_unknown(command, rest[0])
    return options


def _refuse_unknown(command: Parser, argument: str) -> None:
    flags = [flag for action in command._actions for flag in action.option_strings]
    if (name := argument.partition("=")[0]) not in flags:
        command.error(f"unknown argument {name}{did_you_mean(name, flags)}")


def complete_files(argument: argparse.Action) -> None:
    """Make shells complete the argument with file names."""
    argument.complete = shtab.FILE  # type: ignore[attr-defined]


def add_settings(command: argparse.ArgumentParser, only: Sequence[str] | None = None) -> None:
    """Add one flag per setting of the config tree.

    A command that takes all of them lists its own flags first, then these by their table in the file.
    """
    if only is None:
        command.usage = command.usage or "%(prog)s [options]"
    groups: dict[str | None, argparse._ActionsContainer] = {}
    complete_files(
        command.add_argument(
            "--config", type=Path, help="TOML file (default: config.toml in the data folder)"
        )
    )
    for section, name, field in fields():
        if only is not None and name not in only:
            continue
        if section not in groups:
            title = f"settings in [{section}]" if section else "settings"
            groups[section] = command if only is not None else command.add_argument_group(title)
        group, flag = groups[section], "--" + name.replace("_", "-")
        default = "" if field.default in (None, "", {}) else f" [{field.default}]"
        text = f"{field.description}{default}".replace("%", "%%")
        if field.annotation is bool:
            group.add_argument(
                flag, dest=name, action=argparse.BooleanOptionalAction, default=None, help=text
            )
        else:
            metavar = (section or name).upper() if section is None else name.split("_")[-1].upper()
            group.add_argument(flag, dest=name, default=None, metavar=metavar, help=text)
    for name in MOVED_NAMES:
        if only is None or name in only:
            _add_moved(command, name)


def _add_moved(command: argparse.ArgumentParser, name: str) -> None:
    """A flag of older versions, which still works but is hidden from help."""
    action: Any = argparse.BooleanOptionalAction if name in MOVED_SWITCHES else "store"
    flag = "--" + name.replace("_", "-")
    command.add_argument(flag, dest=name, action=action, default=None, help=argparse.SUPPRESS)


def add_server(command: argparse.ArgumentParser) -> None:
    """Flags that select the server: the data folder's, or any other."""
    command.add_argument("--url", help="address of another server, such as http://gpu-box:30000")
    command.add_argument("--key", help="its API key [the data folder's, or OPENCLAW_RL_API_KEY]")
    add_settings(command, only=("home",))


def read_config(options: argparse.Namespace) -> Config:
    names = [*(name for _, name, _ in fields()), *MOVED_NAMES]
    return load_config({name: getattr(options, name, None) for name in names}, file=options.config)
