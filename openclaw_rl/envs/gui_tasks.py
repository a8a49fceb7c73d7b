"""Tasks for the browser: generated for this package's pages, or read from JSON.

A task in a file is ``{"id", "instruction", "config": [{"type": "open", "parameters": {"url", "task"}}],
"evaluator": {"func", "result", "expected"}}``. The page gets ``task`` as ``window.task``. ``func`` is
``equal``, ``contains``, ``all`` (of ``checks``) or ``infeasible`` (solved only by giving up).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openclaw_rl.envs.menus import Made
from openclaw_rl.envs.tasks import make_tasks
from openclaw_rl.types import Json, Task

PAGES = Path(__file__).with_name("pages")
_CITIES = (
    "Oslo",
    "Rome",
    "Lima",
    "Cairo",
    "Paris",
    "Delhi",
    "Quito",
    "Dakar",
    "Tokyo",
    "Minsk",
    "Sofia",
    "Hanoi",
)
_PEOPLE = ("Ann", "Ben", "Cora", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jon", "Kim", "Leo")
_GOODS = (
    "Apple",
    "Bread",
    "Cheese",
    "Dates",
    "Eggs",
    "Flour",
    "Grapes",
    "Honey",
    "Jam",
    "Kale",
    "Lemon",
    "Milk",
)
_THINGS = (
    "Save",
    "Print",
    "Delete",
    "Copy",
    "Share",
    "Rename",
    "Open",
    "Close",
    "Archive",
    "Upload",
    "Send",
    "Sort",
)
_TOPICS = (
    "rivers",
    "bridges",
    "whales",
    "clouds",
    "volcanoes",
    "castles",
    "forests",
    "deserts",
    "comets",
    "islands",
)
_SETTINGS = ("Sound", "Updates", "Dark mode", "Location", "Backups", "Newsletter", "Spell check", "Subtitles")
Maker = Callable[[random.Random], Made]


def _page(url: str, shown: Json, **checks: Any) -> Json:
    """``checks``: the expected page state, by path (``__`` stands for a dot)."""
    each = [
        {"func": "equal", "result": {"type": "state", "path": path.replace("__", ".")}, "expected": expected}
        for path, expected in checks.items()
    ]
    config = [{"type": "open", "parameters": {"url": url, "task": shown}}]
    return {"config": config, "evaluator": {"func": "all", "checks": each}}


def _choose(kind: str, title: str, names: tuple[str, ...], asked: str) -> Maker:
    """One click on one of four elements decides."""

    def made(chance: random.Random) -> Made:
        shown, named = chance.sample(names, 4), f"{title} {chance.randrange(10, 100)}"
        right = chance.choice(shown)
        data = _page("choose.html", {"title": named, "kind": kind, "names": shown}, chosen=right)
        easy = {"one_click": True, "by_name": True, "actions": ["click"]}
        return f"{named}: {asked.format(right)}", {**data, **easy}

    return made


def _form(names: tuple[str, ...], title: str) -> Maker:
    def made(chance: random.Random) -> Made:
        values = {
            "Name": chance.choice(_PEOPLE),
            "City": chance.choice(_CITIES),
            "Guests": str(chance.randrange(2, 9)),
        }
        fields = [{"name": name} for name in names]
        wanted = {name: values[name] for name in names}
        named = f"{title} {chance.randrange(10, 99)}"
        given = ", ".join(f"{name} {value}" for name, value in wanted.items())
        shown = {"title": named, "fields": fields}
        return f"Fill in the form of {named} and send it: {given}.", _page("form.html", shown, sent=wanted)

    return made


def _booking(chance: random.Random) -> Made:
    who, where, breakfast = chance.choice(_PEOPLE), chance.sample(_CITIES, 3), chance.random() < 0.5
    city = chance.choice(where)
    shown = {
        "title": "Book a room",
        "fields": [
            {"name": "Guest"},
            {"name": "Hotel in", "options": where},
            {"name": "Breakfast", "type": "checkbox"},
        ],
    }
    asked = f"Book a room for {who} in {city} {'with' if breakfast else 'without'} breakfast."
    return asked, _page("form.html", shown, sent={"Guest": who, "Hotel in": city, "Breakfast": breakfast})


def _search(chance: random.Random) -> Made:
    topics = chance.sample(_TOPICS, 4)
    articles = [f"{chance.choice(('About', 'All about', 'More about'))} {topic}" for topic in topics]
    right = chance.choice(articles)
    asked = f"Search for {right.split()[-1]} and open what you find. ({chance.randrange(1000)} articles)"
    return asked, _page("search.html", {"title": "Library", "articles": articles}, opened=right)


def _goods(chance: random.Random, number: int = 4) -> dict[str, int]:
    return {name: chance.randrange(2, 30) for name in chance.sample(_GOODS, number)}


def _shop_add(chance: random.Random) -> Made:
    goods, times = _goods(chance), chance.randrange(1, 3)
    name = chance.choice(list(goods))
    asked = f"Put {times} {name} for {goods[name]} coins into the cart."
    return asked, _page("shop.html", {"title": "Shop", "goods": goods}, cart={name: times})


def _shop_cheapest(chance: random.Random) -> Made:
    goods = dict(zip(chance.sample(_GOODS, 3), chance.sample(range(2, 30), 3), strict=True))
    asked = f"Put the cheapest of {', '.join(goods)} into the cart."
    return asked, _page(
        "shop.html", {"title": "Shop", "goods": goods}, cart={min(goods, key=goods.__getitem__): 1}
    )


def _shop_order(chance: random.Random) -> Made:
    goods, who = _goods(chance, 3), chance.choice(_PEOPLE)
    name = chance.choice(list(goods))
    asked = f"Order one {name} for {who}."
    return asked, _page(
        "shop.html", {"title": "Market", "goods": goods}, order={"name": who, "goods": {name: 1}}
    )


def _shop_missing(chance: random.Random) -> Made:
    *goods, missing = chance.sample(_GOODS, 5)
    shown = {"title": "Shop", "goods": {name: chance.randrange(2, 30) for name in goods}}
    data = _page("shop.html", shown)
    return f"Order one {missing} for {chance.choice(_PEOPLE)}.", {**data, "evaluator": {"func": "infeasible"}}


def _toggle(chance: random.Random) -> Made:
    settings = {name: chance.random() < 0.5 for name in chance.sample(_SETTINGS, 3)}
    name = chance.choice(list(settings))
    asked = f"Switch {name} {'off' if settings[name] else 'on'} and save. ({', '.join(settings)})"
    wanted = {**settings, name: not settings[name]}
    return asked, _page("settings.html", {"title": "Settings", "settings": settings}, saved=wanted)


def _language(chance: random.Random) -> Made:
    options = chance.sample(("English", "German", "Greek", "Hindi", "Polish", "Thai", "Welsh"), 3)
    switch = chance.choice(_SETTINGS)
    settings = {"Language": {"options": options, "value": options[0]}, switch: True}
    right = chance.choice(options[1:])
    asked = f"Set the language from {options[0]} to {right} and save; leave {switch} on."
    return asked, _page(
        "settings.html", {"title": "Settings", "settings": settings}, saved={"Language": right, switch: True}
    )


def _wizard(chance: random.Random) -> Made:
    who, cities = chance.choice(_PEOPLE), chance.sample(_CITIES, 3)
    city = chance.choice(cities)
    steps = [{"name": "Passenger"}, {"name": "To", "options": cities}, {"name": "Seats"}]
    seats = str(chance.randrange(1, 6))
    asked = f"Book {seats} seats to {city} for {who}."
    wanted = {"Passenger": who, "To": city, "Seats": seats}
    return asked, _page("wizard.html", {"title": "Trains", "steps": steps}, given=wanted, finished=True)


def gui_tasks() -> list[Task]:
    return make_tasks(
        "gui",
        {
            "train": [
                ("press", 1, _choose("button", "Tools", _THINGS, "Press the button {}.")),
                ("follow", 1, _choose("link", "Places", _CITIES, "Follow the link to {}.")),
                ("tick", 1, _choose("checkbox", "Shopping list", _GOODS, "Tick {}.")),
                ("form-one", 2, _form(("Name",), "Guest book")),
                ("form-two", 2, _form(("Name", "City"), "Sign up")),
                ("search", 2, _search),
                ("shop-add", 2, _shop_add),
                ("toggle", 2, _toggle),
            ],
            "validation": [
                ("pick", 1, _choose("radio", "Who is it?", _PEOPLE, "Pick {}.")),
                ("shop-cheapest", 2, _shop_cheapest),
                ("form-three", 2, _form(("City", "Guests", "Name"), "Party")),
            ],
            "test": [
                ("tab", 1, _choose("tab", "Topics", _TOPICS, "Go to the tab {}.")),
                ("order", 2, _shop_order),
                ("language", 2, _language),
                ("booking", 2, _booking),
                ("wizard", 2, _wizard),
                ("missing", 2, _shop_missing),
            ],
        },
    )


def read_tasks(path: Path) -> list[Task]:
    """From a JSON list or JSONL; ValueError names the task and what is wrong with it."""
    text = path.read_text(encoding="utf-8")
    rows = (
        json.loads(text)
        if text.lstrip().startswith("[")
        else map(json.loads, filter(None, text.splitlines()))
    )
    return [_read(path, number, row) for number, row in enumerate(rows, 1)]


def _read(path: Path, number: int, row: Json) -> Task:
    where = f"{path}, task {number}"
    try:
        opened = row["config"][0]
        page, func = opened["parameters"]["url"], row["evaluator"]["func"]
        str(row["instruction"])
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{where}: a task has instruction, config and evaluator ({error!r})") from None
    if len(row["config"]) != 1 or opened["type"] != "open" or not (path.parent / page).is_file():
        raise ValueError(f"{where}: config opens one page that lies beside the tasks, not {opened}")
    if func not in ("equal", "contains", "infeasible", "all"):
        raise ValueError(f"{where}: evaluators are equal, contains, infeasible and all, not {func!r}")
    for check in row["evaluator"].get("checks") or ([] if func == "infeasible" else [row["evaluator"]]):
        if check.get("result", {}).get("type") not in ("state", "url", "text", "value", "checked"):
            raise ValueError(f"{where}: a check's result is of type state, url, text, value or checked")
    return Task(str(row.get("id", f"{path.stem}-{number}")), row)
