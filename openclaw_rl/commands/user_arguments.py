"""Actions and flags of ``openclaw-rl users``."""

from __future__ import annotations

from openclaw_rl.commands.flags import Parser, add_settings


def add_arguments(users: Parser) -> None:
    actions = users.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_settings(actions.add_parser("list", help="list everybody who has a key"), only=("home",))
    waves = actions.add_parser("waves", help="list sudden waves of complaints that wait for your decision")
    waves.add_argument("--learn", type=int, metavar="ID", help="learn from this one after all")
    waves.add_argument("--discard", type=int, metavar="ID", help="never learn from this one")
    add_settings(waves, only=("home",))
    for name, text in (
        ("add", "create a key for somebody"),
        ("group", "let somebody share a group's policy"),
        ("environment", "use a key for an agent in an environment, with its own policy"),
        ("quota", "set somebody's limits"),
        ("record", "switch recording of somebody's requests on or off"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("name", help="the user")
        if name == "group":
            action.add_argument("group", help="its name, or 'none'")
        elif name == "environment":
            action.add_argument("environment", help="its name, or 'none'")
        elif name == "quota":
            action.add_argument("--requests-per-minute", metavar="N", help="a number, or 'none'")
            action.add_argument(
                "--tokens-per-day", metavar="N", help="prompts and replies; a number, or 'none'"
            )
        elif name == "record":
            action.add_argument("record", choices=("on", "off"))
        add_settings(action, only=("home",))
