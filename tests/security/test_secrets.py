"""Secrets in complaints become neither lessons nor lasting words on the disk."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.judge import JudgeParts, create_judge
from openclaw_rl.judge.worker import JudgeWorker
from openclaw_rl.testing import scripted_system

CHAT = "/v1/chat/completions"
SECRETS = [
    ("Please use my card 4111 1111 1111 1111 for it.", "4111 1111 1111 1111"),
    ("You forgot the key sk-proj-Zk3v9Qw7Lm2Xp8Tr5Yb1Nc6D, use it.", "sk-proj-Zk3v9Qw7Lm2Xp8Tr5Yb1Nc6D"),
    ("Always send it to anna.keller@privat-mail.example, please.", "anna.keller@privat-mail.example"),
    ("Use ghp_A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8 next time.", "ghp_A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"),
    ("Write that the IBAN is DE89 3704 0044 0532 0130 00.", "DE89 3704 0044 0532 0130 00"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "secret"), SECRETS)
async def test_a_secret_in_a_complaint_is_no_lesson(tmp_path: Path, said: str, secret: str) -> None:
    system = scripted_system(tmp_path / "home", notes="on")
    headers = {"authorization": f"Bearer {system.keys.key_of('default')}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(system.app()), base_url="http://127.0.0.1", headers=headers
    ) as client:
        talk = [{"role": "user", "content": "Write the order."}]
        first = (await client.post(CHAT, json={"model": "scripted", "messages": talk})).json()
        talk += [first["choices"][0]["message"], {"role": "user", "content": f"👎 {said}"}]
        assert (await client.post(CHAT, json={"model": "scripted", "messages": talk})).status_code == 200
        judging = JudgeWorker(
            LedgerJudgeQueue(system.ledgers.serve, system.ledgers.learn, 1800),
            create_judge("rules", JudgeParts()),
        )
        await judging.step()
        # Some are masked and judged, others are not judged at all.
        verdict = system.ledgers.learn.verdict(first["id"])
        assert verdict is None or not any(secret in hint for hint in verdict.hints)
        turn = (await client.get(f"/v1/turns/{first['id']}")).json()
        assert verdict is not None or turn["state"] in ("excluded", "unjudged"), turn
        system.memory.refresh()
        assert secret not in (system.memory.note("default") or "")
    await system.close()
