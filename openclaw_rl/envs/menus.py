"""Terminal tasks in which the agent chooses among given commands: the easiest tier, for small models.

A grammar allows only these commands, so that a model that cannot yet write one can still be right. Which one
is right depends on the instruction alone. Every command is the right one in some training task, so that none
is learned to be wrong; the splits differ in the wording.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from openclaw_rl.types import Json

Made = tuple[str, Json]
Template = tuple[str, int, Callable[[random.Random], Made]]

PLACES = (
    "alpha", "river", "stone", "maple", "cloud", "ember", "frost", "harbor", "meadow", "cedar", "orbit",
)  # fmt: skip
WORDS = ("apple", "green", "seven", "paper", "window", "silver", "garden", "monday", "coffee", "winter")
#: Commands offered in a task, the right one among them.
_OFFERED = 5


@dataclass(frozen=True, slots=True)
class _Action:
    """A command, checks that only it passes, and four ways to ask for it (``_SPLITS``)."""

    command: str
    checks: Sequence[str]
    wordings: Sequence[str]


def _holds(name: str, text: str) -> str:
    return f'[ "$(cat {name})" = "{text}" ]'


#: {old} is a file of three lines: {b}, {c}, {a}, in this order; {new} does not exist.
_ACTIONS = {
    "folder": _Action(
        "mkdir {new}",
        ["[ -d {new} ]"],
        ["Create a folder named {new}.", "Make a new directory {new}.", "I need a folder {new}.",
         "Add a directory with the name {new}."],
    ),
    "empty": _Action(
        "touch {new}",
        ["[ -f {new} ]", "[ ! -s {new} ]"],
        ["Create an empty file named {new}.", "Make a file {new} with nothing in it.",
         "I need an empty file {new}.", "Add a blank file with the name {new}."],
    ),
    "delete": _Action(
        "rm {old}",
        ["[ ! -e {old} ]", "[ ! -e {new} ]"],
        ["Delete the file {old}.", "Remove {old}.", "The file {old} has to go.", "Get rid of {old}."],
    ),
    "copy": _Action(
        "cp {old} {new}",
        ["cmp -s {old} {new}"],
        ["Copy {old} to {new}.", "Make a copy of {old} named {new}.", "Duplicate {old} as {new}.",
         "I want {new} to be a second copy of {old}."],
    ),
    "rename": _Action(
        "mv {old} {new}",
        ["[ ! -e {old} ]", "[ -f {new} ]"],
        ["Rename {old} to {new}.", "Move {old} to {new}.", "The file {old} should be called {new} instead.",
         "Change the name of {old} to {new}."],
    ),
    "sort": _Action(
        "sort {old} > {new}",
        [_holds("{new}", "{a}\n{b}\n{c}")],
        ["Sort the lines of {old} into {new}.", "Put the lines of {old} in order and write them to {new}.",
         "I want the lines of {old} sorted, in {new}.", "Order {old} from a to z, result in {new}."],
    ),
    "count": _Action(
        "wc -l < {old} > {new}",
        ["[ $(cat {new}) -eq 3 ]"],
        ["Count the lines of {old} and write the number to {new}.",
         "Write how many lines {old} has into {new}.", "How many lines are in {old}? Answer in {new}.",
         "Put the number of lines of {old} into {new}."],
    ),
    "first": _Action(
        "head -n 1 {old} > {new}",
        [_holds("{new}", "{b}")],
        ["Write the first line of {old} into {new}.", "Save only the first line of {old} in {new}.",
         "The first line of {old} should be in {new}.", "Put what {old} begins with into {new}."],
    ),
    "last": _Action(
        "tail -n 1 {old} > {new}",
        [_holds("{new}", "{a}")],
        ["Write the last line of {old} into {new}.", "Save only the last line of {old} in {new}.",
         "The last line of {old} should be in {new}.", "Put what {old} ends with into {new}."],
    ),
    "write": _Action(
        "echo {word} > {new}",
        [_holds("{new}", "{word}")],
        ["Create a file {new} that contains the word {word}.", "Write the word {word} to a new file {new}.",
         "I need a file {new} that says {word}.", "Store the word {word} in {new}."],
    ),
    "append": _Action(
        "echo {word} >> {old}",
        [_holds("{old}", "{b}\n{c}\n{a}\n{word}")],
        ["Append the word {word} to {old}.", "Add the line {word} at the end of {old}.",
         "The file {old} should end with a new line {word}.", "Put {word} below the last line of {old}."],
    ),
}  # fmt: skip
#: Two commands in the right order: the second fails without the first.
_PAIRS = {
    "into-folder": (
        "mkdir {new}", "mv {old} {new}/", ["[ -f {new}/{old} ]", "[ ! -e {old} ]"],
        ["Create a folder {new} and move {old} into it.", "Make a directory {new}, then move {old} there.",
         "Move {old} into a new folder {new}.", "Put {old} into a folder {new} that you create first."],
    ),
    "copy-into-folder": (
        "mkdir {new}", "cp {old} {new}/", ["cmp -s {old} {new}/{old}"],
        ["Create a folder {new} and copy {old} into it.", "Make a directory {new}, then copy {old} there.",
         "Copy {old} into a new folder {new}.", "Put a copy of {old} into a folder {new}, made first."],
    ),
}  # fmt: skip
_SPLITS = (("train", (0, 1)), ("validation", (2,)), ("test", (3,)))


def menu_templates(split: str) -> list[Template]:
    """One for each wording of the split."""
    numbers = dict(_SPLITS)[split]
    one = [
        (f"choose-{name}-{number}", 0, partial(_choose, name, number))
        for name in _ACTIONS
        for number in numbers
    ]
    two = [
        (f"choose-{name}-{number}", 0, partial(_choose_two, name, number))
        for name in _PAIRS
        for number in numbers
    ]
    return [*one, *two]


def _names(chance: random.Random) -> dict[str, str]:
    old, new = chance.sample(PLACES, 2)
    a, b, c = sorted(chance.sample(WORDS, 3))
    left = [word for word in WORDS if word not in (a, b, c)]
    number = chance.randrange(10, 100)
    return {"old": f"{old}{number}.txt", "new": f"{new}{number}", "word": chance.choice(left),
            "a": a, "b": b, "c": c}  # fmt: skip


def _choose(name: str, number: int, chance: random.Random) -> Made:
    names, action = _names(chance), _ACTIONS[name]
    others = chance.sample([each.command for each in _ACTIONS.values() if each is not action], _OFFERED - 1)
    return _made(names, action.wordings[number], [action.command, *others], action.checks, 1, chance)


def _choose_two(name: str, number: int, chance: random.Random) -> Made:
    names, (first, second, checks, wordings) = _names(chance), _PAIRS[name]
    others = ["rm {old}", "touch {new}", "cat {old}"]
    return _made(names, wordings[number], [first, second, *others], checks, 3, chance)


def _made(
    names: dict[str, str], asked: str, commands: Sequence[str], checks: Sequence[str], steps: int,
    chance: random.Random,
) -> Made:  # fmt: skip
    offered = [command.format(**names) for command in commands]
    chance.shuffle(offered)
    return asked.format(**names), {
        "files": {names["old"]: "".join(f"{names[key]}\n" for key in "bca")},
        "checks": [check.format(**names) for check in checks],
        "commands": offered,
        "steps": steps,
    }
