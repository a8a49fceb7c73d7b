"""A custom rollout: a simulated user who keeps talking as long as the learn process runs.

    openclaw-rl serve --rollout my_rollout:curious_user

It is an ordinary client: its conversations are captured, judged and learned from like any other.
"""

import asyncio
import itertools

import httpx

QUESTIONS = ["What is rain?", "Why do cats purr?", "How does a lock work?"]


async def curious_user(base_url: str, api_key: str) -> None:
    headers = {"authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=120) as client:
        for question in itertools.cycle(QUESTIONS):
            messages = [{"role": "user", "content": question}]
            body = {"model": "default", "messages": messages, "max_tokens": 64}
            answer = await client.post("/chat/completions", json=body)
            answer.raise_for_status()
            messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "Thanks!"}]
            await client.post("/chat/completions", json=body)
            await asyncio.sleep(1)
