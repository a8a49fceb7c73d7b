"""Recall and false alarms of the secret scanner: `python bench/find_secrets.py`.

500 secrets of 20 kinds are generated from their published formats, each in one of eight contexts; 10,000
lines of code and prose come from Python's standard library and the installed packages. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import string
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from openclaw_rl.secret_scan import find_secrets, mask

ALNUM, LOWER, HEX = (
    string.ascii_letters + string.digits,
    string.ascii_lowercase + string.digits,
    "0123456789abcdef",
)
UPPER = string.ascii_uppercase + string.digits
Make = Callable[[random.Random], str]


def text(rng: random.Random, letters: str, number: int) -> str:
    return "".join(rng.choices(letters, k=number))


def base64_text(rng: random.Random, number: int) -> str:
    return base64.b64encode(rng.randbytes(number)).decode()


def jwt(rng: random.Random) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    signature = base64.urlsafe_b64encode(rng.randbytes(32)).decode().rstrip("=")
    return f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part({'sub': text(rng, ALNUM, 8)})}.{signature}"


def private_key(rng: random.Random) -> str:
    name = rng.choice(["RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY"])
    body = base64_text(rng, rng.choice([120, 600, 1190]))
    lines = "\n".join(body[i : i + 64] for i in range(0, len(body), 64))
    return f"-----BEGIN {name}-----\n{lines}\n-----END {name}-----"


def card(rng: random.Random) -> str:
    number = rng.choice(["4", "51", "37", "6011"])
    length = 15 if number == "37" else 16
    number += text(rng, string.digits, length - 1 - len(number))
    doubled = [int(d) * 2 - 9 * (int(d) > 4) for d in number[::-2]]
    number += str(-(sum(doubled) + sum(map(int, number[-2::-2]))) % 10)
    spaced = (
        f"{number[:4]} {number[4:10]} {number[10:]}"
        if length == 15
        else " ".join(number[i : i + 4] for i in range(0, 16, 4))
    )
    return rng.choice([number, spaced, spaced.replace(" ", "-")])


def iban(rng: random.Random) -> str:
    country, length = rng.choice([("DE", 18), ("FR", 23), ("NL", 14), ("ES", 20), ("GB", 18)])
    account = text(rng, string.digits, length)
    if country in ("NL", "GB"):
        account = text(rng, string.ascii_uppercase, 4) + account[4:]
    check = 98 - int("".join(str(int(c, 36)) for c in f"{account}{country}00")) % 97
    whole = f"{country}{check:02}{account}"
    return whole if rng.random() < 0.5 else " ".join(whole[i : i + 4] for i in range(0, len(whole), 4))


def password(rng: random.Random) -> str:
    symbols, words = "!@#$%^&*", ["river", "Falcon", "winter", "Kaffee", "blue", "monkey", "Berlin"]
    made = rng.choice(words) + text(rng, string.digits, 2) + rng.choice(symbols) + text(rng, ALNUM, 4)
    return rng.choice([made, text(rng, ALNUM, 16) + "7x4", f"{text(rng, ALNUM, 10)}{rng.choice(symbols)}8b"])


KINDS: dict[str, Make] = {
    "aws access key": lambda r: "AKIA" + text(r, UPPER, 16),
    "aws secret key": lambda r: "aws_secret_access_key=" + base64_text(r, 30),
    "github token": lambda r: r.choice(["ghp_", "gho_", "ghs_"]) + text(r, ALNUM, 36),
    "github fine-grained token": lambda r: f"github_pat_{text(r, ALNUM, 22)}_{text(r, ALNUM, 59)}",
    "gitlab token": lambda r: "glpat-" + text(r, ALNUM, 20),
    "openai key": lambda r: f"sk-proj-{text(r, ALNUM, 20)}T3BlbkFJ{text(r, ALNUM, 20)}",
    "anthropic key": lambda r: f"sk-ant-api03-{text(r, ALNUM + '-_', 93)}AA",
    "google key": lambda r: "AIza" + text(r, ALNUM + "-_", 35),
    "slack token": lambda r: f"xoxb-{r.randrange(10**10, 10**11)}-{r.randrange(10**12)}-{text(r, ALNUM, 24)}",
    "stripe key": lambda r: r.choice(["sk_live_", "rk_live_", "sk_test_"]) + text(r, ALNUM, 24),
    "sendgrid key": lambda r: f"SG.{text(r, ALNUM, 22)}.{text(r, ALNUM, 43)}",
    "twilio key": lambda r: "SK" + text(r, HEX, 32),
    "telegram token": lambda r: f"{text(r, '123456789', 9)}:{text(r, ALNUM, 35)}",
    "hugging face token": lambda r: "hf_" + text(r, ALNUM, 34),
    "npm token": lambda r: "npm_" + text(r, ALNUM, 36),
    "jwt": jwt,
    "private key": private_key,
    "card number": card,
    "iban": iban,
    "password": password,
}  # fmt: skip
#: Contexts in which people and programs write secrets; those for passwords name them.
PLAIN = (
    "{}", "my key is {} please keep it", "Here: {}.", '{{"value": "{}"}}', "export X={}",
    "curl -H 'X-Key: {}' https://a.b", "I get 401 with `{}`, why?", "- {}\n- next line",
)  # fmt: skip
NAMED = (
    "password: {}", "the password is {}", 'PASSWORD="{}"', '{{"password": "{}"}}', "DB_PASSWORD={}", "pwd={}",
    "login with password `{}`", "passwd = '{}'",
)  # fmt: skip


def find_all(number: int, rng: random.Random) -> tuple[Counter[str], Counter[str]]:
    """How many of each kind were generated, and how many were masked completely."""
    made: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for i in range(number):
        kind = list(KINDS)[i % len(KINDS)]
        secret = KINDS[kind](rng)
        said = rng.choice(NAMED if kind == "password" else PLAIN).format(secret)
        made[kind] += 1
        value = secret.partition("=")[2] if kind == "aws secret key" else secret
        found[kind] += value not in mask(said)
    return made, found


def ordinary_lines(number: int, rng: random.Random) -> list[str]:
    """Half code, half prose; no tests, which contain fake keys."""
    places = {name: Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")}
    code = [
        p for p in places["stdlib"].rglob("*.py") if not {"test", "tests", "site-packages"} & set(p.parts)
    ]
    prose = [p for p in places["purelib"].rglob("METADATA")] + list(
        Path(__file__).parents[1].glob("docs/*.md")
    )
    chosen: list[str] = []
    for files in (code, prose):
        lines = [
            line
            for path in sorted(files)
            for line in path.read_text(errors="replace").splitlines()
            if line.strip()
        ]
        chosen += rng.sample(lines, number // 2)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--show", action="store_true", help="print what was missed or wrongly taken for a secret"
    )
    options = parser.parse_args()
    rng = random.Random(options.seed)
    made, found = find_all(500, rng)
    lines = ordinary_lines(10_000, rng)
    begun = time.perf_counter()
    alarms = [line for line in lines if find_secrets(line)]
    seconds = time.perf_counter() - begun
    if options.show:
        print(
            *(f"missed {kind}: {made[kind] - found[kind]}" for kind in made if made[kind] > found[kind]),
            sep="\n",
        )
        print(*(f"false alarm: {mask(line)[:160]!r}" for line in alarms), sep="\n")
    characters = sum(map(len, lines))
    report = {
        "secrets": made.total(), "found": found.total(), "kinds": len(made),
        "lines": len(lines), "false_alarms": len(alarms), "mb_per_s": characters / 1e6 / seconds,
    }  # fmt: skip
    print(json.dumps(report))


if __name__ == "__main__":
    main()
