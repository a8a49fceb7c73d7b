"""Tasks for this package's environments, generated from templates; and the division into splits.

Each template belongs to one split only, so that a test task asks for something that no training task did.
``difficulty`` 0 offers a few commands to choose from, 1 takes one action, 2 takes several.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from openclaw_rl.envs.menus import PLACES, WORDS, Made, Template, menu_templates
from openclaw_rl.envs.tools import BUILT_IN
from openclaw_rl.types import Task

SPLITS = ("train", "validation", "test")
_NAMES = (*PLACES, "pearl")
#: Tasks per template.
_EACH = 20


def split_of(task: Task) -> str:
    return str(task.data.get("split", "train"))


def by_position(number: int) -> str:
    """The split for tasks that name none: of every ten, eight are for training."""
    return {8: "validation", 9: "test"}.get(number % 10, "train")


def by_hash(task: Task) -> str:
    """The split by the task's content: independent of its position and of other tasks, and the same for tasks
    with the same instruction."""
    asked = task.data.get("instruction") or {name: task.data[name] for name in task.data if name != "split"}
    return by_position(int(hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8], 16))


def divided(tasks: Sequence[Task]) -> list[Task]:
    """Tasks with a split each: by hash if none of them names one, else ``train`` for those that do not."""
    named = any("split" in task.data for task in tasks)
    return [
        Task(task.id, {"split": split_of(task) if named else by_hash(task), **task.data}) for task in tasks
    ]


def of_split(tasks: Sequence[Task], split: str) -> list[Task]:
    """The tasks of one split, or ``all``; ValueError if a task is in two splits."""
    tasks = divided(tasks)
    check_disjoint(tasks)
    return [task for task in tasks if split in ("all", split_of(task))]


def check_disjoint(tasks: Iterable[Task]) -> None:
    """No task content may be in two splits; contents are compared by hash."""
    seen: dict[str, str] = {}
    for task in tasks:
        asked = {name: value for name, value in task.data.items() if name not in ("split", "template")}
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        if seen.setdefault(digest, split_of(task)) != split_of(task):
            raise ValueError(
                f"task {task.id} of {split_of(task)} is also in {seen[digest]}: sets must be disjoint"
            )


def make_tasks(prefix: str, templates: Mapping[str, Sequence[Template]]) -> list[Task]:
    made: dict[str, Task] = {}
    for split, known in templates.items():
        for name, difficulty, template in known:
            chance, number = random.Random(f"{prefix} {name}"), 0
            while number < _EACH:
                asked, data = template(chance)
                facts = {
                    "instruction": asked,
                    "split": split,
                    "template": name,
                    "difficulty": difficulty,
                    **data,
                }
                if asked not in made:
                    made[asked] = Task(f"{prefix}-{name}-{number}", facts)
                    number += 1
    return list(made.values())


# --- terminal ------------------------------------------------------------------------------------


def _file(chance: random.Random) -> str:
    return f"{chance.choice(_NAMES)}{chance.randrange(10, 100)}.txt"


def _lines(chance: random.Random, number: int) -> list[str]:
    return [f"{chance.choice(WORDS)} {chance.randrange(10, 100)}" for _ in range(number)]


def _equal(name: str, text: str) -> str:
    return f"[ \"$(cat {name})\" = '{text}' ]"


def _create(chance: random.Random) -> Made:
    name, word = _file(chance), chance.choice(WORDS)
    return f"Create a file named {name} that contains the word {word}.", {"checks": [_equal(name, word)]}


def _folder(chance: random.Random) -> Made:
    name = f"{chance.choice(_NAMES)}{chance.randrange(10, 100)}"
    return f"Create a folder named {name}.", {"checks": [f"[ -d {name} ]"]}


def _delete(chance: random.Random) -> Made:
    name, other = _file(chance), f"keep-{_file(chance)}"
    return f"Delete the file {name}.", {
        "files": {name: "x\n", other: "y\n"},
        "checks": [f"[ ! -e {name} ]", f"[ -e {other} ]"],
    }


def _rename(chance: random.Random) -> Made:
    old, new = _file(chance), f"new-{_file(chance)}"
    word = chance.choice(WORDS)
    return f"Rename the file {old} to {new}.", {
        "files": {old: f"{word}\n"},
        "checks": [f"[ ! -e {old} ]", _equal(new, word)],
    }


def _count(chance: random.Random) -> Made:
    name, lines = _file(chance), _lines(chance, chance.randrange(4, 30))
    asked = f"Count the lines of {name} and write the number into answer.txt."
    checks = [f"grep -qw {len(lines)} answer.txt", "[ $(wc -w < answer.txt) -le 2 ]"]
    return asked, {"files": {name: "\n".join(lines) + "\n"}, "checks": checks}


def _sort(chance: random.Random) -> Made:
    name, lines = _file(chance), _lines(chance, 6)
    asked = f"Sort the lines of {name} and write them into sorted.txt."
    return asked, {
        "files": {name: "\n".join(lines) + "\n"},
        "checks": [_equal("sorted.txt", "\n".join(sorted(lines)))],
    }


def _replace(chance: random.Random) -> Made:
    name, (old, new) = _file(chance), chance.sample(WORDS, 2)
    asked = f"In the file {name}, replace the word {old} with {new}."
    return asked, {"files": {name: f"a {old} b\n{old}\n"}, "checks": [_equal(name, f"a {new} b\n{new}")]}


def _find(chance: random.Random) -> Made:
    names = sorted({_file(chance) for _ in range(5)})
    word, right = chance.choice(WORDS), chance.choice(names)
    files = {name: (f"{word}\n" if name == right else "nothing here\n") for name in names}
    among = ", ".join(names)
    asked = f"Find which of {among} contains the word {word} and write its name into answer.txt."
    return asked, {
        "files": files,
        "checks": [f"grep -q {right} answer.txt", "[ $(wc -w < answer.txt) -le 2 ]"],
    }


def _move(chance: random.Random) -> Made:
    name, folder = _file(chance), f"{chance.choice(_NAMES)}{chance.randrange(100, 200)}"
    return f"Create a folder named {folder} and move {name} into it.", {
        "files": {name: "x\n"}, "checks": [f"[ -f {folder}/{name} ]", f"[ ! -e {name} ]"],
    }  # fmt: skip


def _append(chance: random.Random) -> Made:
    name, word = _file(chance), chance.choice(WORDS)
    return f"Append the line {word} to the file {name}.", {
        "files": {name: "one\n"},
        "checks": [_equal(name, f"one\n{word}")],
    }


def _copy(chance: random.Random) -> Made:
    name, new, word = _file(chance), f"copy-{_file(chance)}", chance.choice(WORDS)
    return f"Copy {name} to {new}.", {
        "files": {name: f"{word}\n"},
        "checks": [_equal(name, word), _equal(new, word)],
    }


def _write(chance: random.Random) -> Made:
    name, number = _file(chance), chance.randrange(100, 1000)
    return f"Write the number {number} into the file {name}.", {"checks": [_equal(name, str(number))]}


def _last(chance: random.Random) -> Made:
    name, lines = _file(chance), _lines(chance, 7)
    asked = f"Write the last line of {name} into answer.txt."
    return asked, {"files": {name: "\n".join(lines) + "\n"}, "checks": [_equal("answer.txt", lines[-1])]}


def _told(command: str, checks: Sequence[str], files: Sequence[str] = ()) -> Callable[[random.Random], Made]:
    """The task states the command to run."""

    def made(chance: random.Random) -> Made:
        one = f"{chance.choice(_NAMES)}{chance.randrange(10, 100)}"
        names = {"one": one, "two": f"{chance.choice(_NAMES)}{chance.randrange(100, 200)}"}
        names["word"] = chance.choice(WORDS)
        asked = f"Run the command: {command.format(**names)}"
        given = {file.format(**names): f"{names['word']}\n" for file in files}
        return asked, {"files": given, "checks": [check.format(**names) for check in checks]}

    return made


def terminal_tasks() -> list[Task]:
    return make_tasks(
        "terminal",
        {
            "train": [
                *menu_templates("train"),
                ("told-mkdir", 1, _told("mkdir {one}", ["[ -d {one} ]"])),
                ("told-touch", 1, _told("touch {one}", ["[ -f {one} ]"])),
                ("told-echo", 1, _told("echo {word} > {one}", ['[ "$(cat {one})" = {word} ]'])),
                ("create", 1, _create), ("folder", 1, _folder), ("delete", 1, _delete),
                ("rename", 1, _rename), ("count", 1, _count), ("sort", 1, _sort),
                ("replace", 1, _replace), ("find", 2, _find),
            ],
            "validation": [
                *menu_templates("validation"),
                ("told-rm", 1, _told("rm {one}", ["[ ! -e {one} ]", "[ -e {two} ]"], ["{one}", "{two}"])),
                ("append", 1, _append), ("move", 2, _move),
            ],
            "test": [
                *menu_templates("test"),
                ("told-cp", 1, _told("cp {one} {two}", ["cmp {one} {two}"], ["{one}"])),
                ("told-mv", 1, _told("mv {one} {two}", ["[ ! -e {one} ]", "[ -f {two} ]"], ["{one}"])),
                ("copy", 1, _copy), ("write", 1, _write), ("last", 1, _last),
            ],
        },
    )  # fmt: skip


# --- tool calls ----------------------------------------------------------------------------------


def _calls(form: str, right: str, other: str) -> Callable[[random.Random], Made]:
    """One call of the right one of two tools, which are offered in any order."""
    function = BUILT_IN[right][1]

    def made(chance: random.Random) -> Made:
        if "{word}" in form:
            word = "".join(chance.sample("abcdefghijklmnoprstuw", chance.randrange(4, 9)))
            asked, answer = form.format(word=word), function(word)
        else:
            b, a = sorted((chance.randrange(10, 100), chance.randrange(10, 100)))
            asked, answer = form.format(a=a, b=b), function(a, b)
        tools = chance.sample([right, other], 2)
        return asked, {"answer": str(answer), "tools": tools, "one_call": True}

    return made


def _chain(chance: random.Random) -> Made:
    a, b, c = chance.randrange(10, 100), chance.randrange(10, 100), chance.randrange(2, 10)
    return f"Add {a} and {b}, then multiply the result by {c}.", {
        "answer": str((a + b) * c),
        "tools": ["add", "multiply"],
    }


def _price(chance: random.Random) -> Made:
    a, b, c = chance.randrange(10, 100), chance.randrange(10, 100), chance.randrange(2, 10)
    asked = f"A ticket costs {a} coins. I buy {c} tickets and have a voucher of {b} coins. What do I pay?"
    return asked, {"answer": str(a * c - b), "tools": ["multiply", "subtract"]}


#: Every tool is right in some training task and wrong in another, so that none is learned to be wrong.
_ONE_CALL = {
    "train": [
        ("sum", "What is {a} plus {b}?", "add", "multiply"),
        ("sum-words", "Add {a} and {b}.", "add", "subtract"),
        ("found", "I have {a} coins and find {b} more. How many do I have?", "add", "multiply"),
        ("difference", "What is {a} minus {b}?", "subtract", "add"),
        ("shop", "I have {a} coins and spend {b}. How many are left?", "subtract", "multiply"),
        ("product", "What is {a} times {b}?", "multiply", "subtract"),
        ("bags", "{a} bags hold {b} marbles each. How many marbles?", "multiply", "add"),
        ("length", "How many letters has the word {word}?", "length", "reverse"),
        ("reverse", "Spell the word {word} backwards.", "reverse", "upper"),
        ("capitals", "Make the word {word} upper case.", "upper", "length"),
    ],
    "validation": [
        ("total", "Tom has {a} cards and gets {b} more. How many now?", "add", "multiply"),
        ("eaten", "Eve bakes {a} cakes and eats {b}. How many remain?", "subtract", "add"),
        ("boxes", "There are {a} boxes of {b} eggs. How many eggs?", "multiply", "subtract"),
        ("upper", "Write the word {word} in capital letters.", "upper", "reverse"),
    ],
    "test": [
        ("together", "There are {a} red and {b} blue balls. How many together?", "add", "multiply"),
        ("rows", "{a} rows with {b} seats each: how many seats?", "multiply", "subtract"),
        ("older", "Ann is {a}, Ben is {b}. How much older is Ann?", "subtract", "add"),
        ("backwards", "What is {word} read from the end?", "reverse", "length"),
    ],
}


def toolcall_tasks() -> list[Task]:
    templates: dict[str, list[Template]] = {
        split: [(name, 1, _calls(*form)) for name, *form in forms] for split, forms in _ONE_CALL.items()
    }
    templates["train"].append(("chain", 2, _chain))
    templates["test"].append(("price", 2, _price))
    return make_tasks("toolcall", templates)
