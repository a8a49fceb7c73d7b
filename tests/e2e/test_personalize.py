"""``openclaw-rl eval personalize`` against a running system, with a user of one's own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from openclaw_rl.testing import ServerProcess, clean_environment, command

THINGS = ("a river", "a lake", "the sea", "a pond", "a well", "rain", "snow", "ice", "fog", "dew")
ASKS = [f"What is {thing}?" for thing in THINGS]


def test_anybody_can_test_a_wish_of_their_own(server: ServerProcess, tmp_path: Path) -> None:
    user = tmp_path / "polite.toml"
    user.write_text(
        f'name = "polite"\nasks = {json.dumps(ASKS)}\n'
        'complains = ["Please say please."]\nthanks = ["Thank you!"]\n[check]\nmatches = "please"\n'
    )
    out = tmp_path / "out"
    arguments = [
        command(),
        "eval",
        "personalize",
        "--url",
        server.url,
        "--user",
        str(user),
        "--out",
        str(out),
    ]
    environment = clean_environment(tmp_path / "home", {"OPENCLAW_RL_API_KEY": server.key})

    def evaluate(sessions: int) -> list[dict[str, object]]:
        done = subprocess.run(
            [*arguments, "--sessions", str(sessions), "--held-out", "2", "--probes", "1"],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "| polite | running | 1 |" in done.stdout
        return [
            json.loads(line) for line in (out / "arms/running-polite-0/log.jsonl").read_text().splitlines()
        ]

    rows = evaluate(2)
    assert [row["number"] for row in rows if row["type"] == "session"] == [0, 1]
    assert rows[-1]["type"] == "end"
    for name in ("satisfaction.png", "sessions.png", "forgetting.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    curve = json.loads((tmp_path / "home/evals/out-polite.json").read_text())
    assert curve["x"] == [0, 2]
    first = next(row for row in rows if row["type"] == "session")
    assert isinstance(turns := first["turns"], list)
    assert turns[0]["truth"] in (-1, 0, 1)

    # Interrupted after the sessions: they are not held again.
    log = out / "arms/running-polite-0/log.jsonl"
    log.write_text(
        "".join(json.dumps(row) + "\n" for row in rows if row["type"] in ("session", "held_out", "probes"))
    )
    again = [row for row in evaluate(3) if row["type"] == "session"]
    assert [row["number"] for row in again] == [0, 1, 2]
    assert again[:2] == [row for row in rows if row["type"] == "session"]
