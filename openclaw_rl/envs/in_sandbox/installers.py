"""Stands in for installers where there is no network.

What is already present counts as installed. What is not is recorded, so that tests that fail because of it
can be told apart from tests that the agent failed. The first argument is the name of the program.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MISSING = "/logs/missing"
NAMES = (
    "apt", "apt-get", "conda", "curl", "npm", "npx", "pip", "pip3", "pytest", "python", "python3", "uv",
    "uvx", "wget",
)  # fmt: skip
#: Packages that are present under another name, or that no test depends on.
GIVEN = {"ca-certificates", "pip", "python3", "python3-pip", "python3-venv", "setuptools", "uv", "wheel"}
#: Options of pip and uv that take a value.
VALUES = {
    "-c", "-e", "-i", "-p", "-r", "-t", "--constraint", "--editable", "--from", "--index-url",
    "--extra-index-url", "--project", "--python", "--requirement", "--target", "-w", "--with",
}  # fmt: skip


def miss(what: str) -> int:
    with open(MISSING, "a", encoding="utf-8") as file:
        file.write(f"{what}\n")
    print(f"{what}: not here, and there is no network", file=sys.stderr)
    return 127


def elsewhere() -> str:
    """``PATH`` without the stand-ins."""
    return ":".join(each for each in os.environ.get("PATH", "").split(":") if each != HERE)


def start(name: str, arguments: list[str]) -> int:
    """Replace this process with the real program."""
    program = shutil.which(name, path=elsewhere())
    if program is None:
        return miss(name)
    os.execv(program, [program, *arguments])


def start_module(name: str, arguments: list[str]) -> int:
    if importlib.util.find_spec(name) is None:
        return start(name, arguments)
    # -P: do not import a file of that name from the agent's folder.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    os.execv(sys.executable, [sys.executable, *safe, "-m", name, *arguments])


def separate(arguments: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Leading options with their values, and everything from the first positional argument on."""
    options: list[tuple[str, str]] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        if name in VALUES and not equals and rest:
            value = rest.pop(0)
        options.append((name, value))
    return options, rest


def require(asked: list[str]) -> int:
    """Takes the arguments of ``pip install``; 0 if everything is present."""
    missing, rest = 0, asked
    while rest:
        options, rest = separate(rest)
        for name, value in options:
            if name in ("-r", "--requirement"):
                missing |= require(read_requirements(value))
            elif name in ("-e", "--editable"):
                missing |= miss(f"pip install -e {value}")
        if rest:
            missing |= 0 if is_here(rest[0]) else miss(rest[0])
            rest = rest[1:]
    return 1 if missing else 0


def read_requirements(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError:
        return [path]
    return [line for line in lines if line and not line.startswith("-")]


def is_here(requirement: str) -> bool:
    name = re.match(r"[A-Za-z0-9][\w.-]*", requirement)
    if name is None:
        return False
    try:
        return name.group() in GIVEN or bool(importlib.metadata.version(name.group()))
    except importlib.metadata.PackageNotFoundError:
        return False


def pip(name: str, arguments: list[str]) -> int:
    return require(arguments[1:]) if arguments[:1] == ["install"] else start(name, arguments)


def uv(arguments: list[str]) -> int:
    _, rest = separate(arguments)
    command, rest = (rest[0], rest[1:]) if rest else ("", [])
    if command in ("pip", "tool") and rest:
        command, rest = f"{command} {rest[0]}", rest[1:]
    if command in ("add", "pip install", "tool install"):
        return require(rest)
    if command in ("run", "tool run"):
        return uvx(rest)
    if command == "venv":
        folder = os.path.join((separate(rest)[1] or [".venv"])[0], "bin")
        os.makedirs(folder, exist_ok=True)
        open(os.path.join(folder, "activate"), "w").close()
    return 0


def uvx(arguments: list[str]) -> int:
    options, rest = separate(arguments)
    wanted = [each for name, value in options if name in ("-w", "--with") for each in value.split(",")]
    if require(wanted):
        return 1
    if not rest:
        return 0
    name = rest[0].partition("@")[0]
    return main(name, rest[1:]) if name in NAMES else start_module(name, rest[1:])


def python(name: str, arguments: list[str]) -> int:
    if arguments[:2] in (["-m", "pip"], ["-m", "uv"]):
        return main(arguments[1], arguments[2:])
    program = shutil.which(name, path=elsewhere())
    if program and len(arguments) > 1 and arguments[0] == "-m":
        find = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
        if subprocess.run([program, "-c", find, arguments[1].partition(".")[0]], check=False).returncode:
            return miss(arguments[1])
    return start(name, arguments)


def apt(arguments: list[str]) -> int:
    words = [each for each in arguments if not each.startswith("-")]
    if words[:1] != ["install"]:
        return 0
    missing = [each for each in words[1:] if each not in GIVEN and shutil.which(each) is None]
    for each in missing:
        miss(f"apt-get install {each}")
    return 100 if missing else 0


def download(name: str, arguments: list[str]) -> int:
    """Local URLs are left to the real program; downloading uv's installer succeeds and does nothing."""
    urls = [each for each in arguments if "://" in each]
    away = [each for each in urls if not re.match(r"\w+://(localhost|127\.|0\.0\.0\.0|\[::1?\])|file:", each)]
    if not away:
        return start(name, arguments)
    return 0 if all("astral.sh/uv" in each for each in away) else miss(f"{name} {away[0]}")


def node_or_conda(name: str, arguments: list[str]) -> int:
    """Run the real program if there is one: it may have a local store."""
    program = shutil.which(name, path=elsewhere())
    code = subprocess.run([program, *arguments], check=False).returncode if program else 127
    installs = name == "npx" or arguments[:1] in (["install"], ["ci"], ["i"], ["create"])
    return miss(" ".join([name, *arguments])) if program is None or (code and installs) else code


def main(name: str, arguments: list[str]) -> int:
    if name in ("apt", "apt-get"):
        return apt(arguments)
    if name in ("pip", "pip3"):
        return pip(name, arguments)
    if name in ("python", "python3"):
        return python(name, arguments)
    if name in ("curl", "wget"):
        return download(name, arguments)
    if name in ("uv", "uvx"):
        return uv(arguments) if name == "uv" else uvx(arguments)
    return start_module(name, arguments) if name == "pytest" else node_or_conda(name, arguments)


if __name__ == "__main__":
    sys.path += filter(None, os.environ.get("PYTHONPATH", "").split(":"))  # -I ignores it
    sys.exit(main(sys.argv[1], sys.argv[2:]))
