"""``openclaw-rl users``: manage users: keys, groups, limits and recording."""

from __future__ import annotations

import argparse
from datetime import datetime

from openclaw_rl.commands.client import ServerClient
from openclaw_rl.config import Config
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.users import Users


def run(options: argparse.Namespace, config: Config) -> int:
    if options.action == "waves":
        return _waves(options, config)
    if options.action == "list":
        users = Users.in_home(config.people)
        for user in KeyRing.in_home(config.people, create=False).users:
            print(_line(user, users))
        return 0
    config.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys, users = KeyRing.in_home(config.people), Users.in_home(config.people)
    if options.action == "add":
        print(f"{options.name}: {keys.add(options.name)}")
        return 0
    if keys.key_of(options.name) is None:
        raise ValueError(f"no user {options.name!r}; 'openclaw-rl users add {options.name}' makes one")
    if options.action == "group":
        users.change(options.name, group=None if options.group == "none" else options.group)
    elif options.action == "environment":
        users.change(options.name, environment=None if options.environment == "none" else options.environment)
    elif options.action == "record":
        users.change(options.name, off_the_record=options.record == "off")
    else:
        limits = {
            "requests_per_minute": options.requests_per_minute,
            "tokens_per_day": options.tokens_per_day,
        }
        given = {name: value for name, value in limits.items() if value is not None}
        if not given:
            raise ValueError(
                "say which: --requests-per-minute N, --tokens-per-day N; 'none' takes a limit away"
            )
        users.change(options.name, **{name: read_limit(value) for name, value in given.items()})
    print(_line(options.name, users))
    return 0


def _waves(options: argparse.Namespace, config: Config) -> int:
    """Held waves of complaints from one key in a shared policy, which wait for the owner's decision."""
    with ServerClient(config) as server:
        for decision in ("learn", "discard"):
            if (number := getattr(options, decision)) is not None:
                server.post(f"/v1/waves/{number}", {"decision": decision})
        for wave in server.get("/v1/waves")["data"]:
            since = datetime.fromtimestamp(wave["since"]).strftime("%Y-%m-%d %H:%M")
            what = f"{wave['number']} complaints since {since}"
            print(f"{wave['id']}  {wave['user']} in {wave['scope']}: {what}; {wave['state']}")
    return 0


def read_limit(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no limit: a whole number, or 'none'")
    return int(text)


def _line(user: str, users: Users) -> str:
    person = users.of(user)
    facts = [
        f"group {person.group}" if person.group else "",
        f"agent in the environment {person.environment}" if person.environment else "",
        "off the record" if person.off_the_record else "",
        f"{person.requests_per_minute} requests a minute" if person.requests_per_minute else "",
        f"{person.tokens_per_day} tokens a day" if person.tokens_per_day else "",
    ]
    return ", ".join([user, *filter(None, facts)])
