"""Judges that prompt an instruction-following model; ``EndpointJudge`` calls it over HTTP.

m votes at temperature 0.6, each a structured answer with its reasoning; strict majority; then, if the
verdict is not positive, one more call for hints. A failed call or an answer that cannot be parsed is a
missing vote; if all are missing, JudgeError says why. Calls and tokens are counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import httpx

from openclaw_rl.config import JudgeConfig
from openclaw_rl.judge.exchange import bounded, text_of
from openclaw_rl.judge.guard import fence, neutralise
from openclaw_rl.judge.hints import filter_hints, verbatim_hints
from openclaw_rl.judge.voting import majority
from openclaw_rl.types import JudgeCase, JudgeError, Message, Verdict

_THINKING_END = re.compile(r"</(?:think|thinking|reasoning)>", re.IGNORECASE)
_THINKING_START = re.compile(r"<(?:think|thinking|reasoning)>", re.IGNORECASE)
_VERDICT = re.compile(r"[\"']verdict[\"']\s*:\s*[\"']?\s*([+−-]?1|0)(?![\d.])")
_CONTEXT_MESSAGES = 6
#: The next state is shown in at most as many characters as so many messages.
_STATE_MESSAGES = 8
_MOST_CALLS = 16
#: Confidence factor for a verdict without a next state, which rests on the reply alone.
_ALONE = 0.5
_CONNECT_S = 10.0
#: The environment variable with the endpoint's key.
API_KEY = "OPENCLAW_RL_JUDGE_API_KEY"


@dataclass(slots=True)
class Usage:
    """Calls and tokens so far."""

    num_calls: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class NoAnswer(Exception):
    """The model gave no answer; says why."""


class AskingJudge:
    """Verdicts and hints from an instruction-following model; subclasses implement the call."""

    message_chars = 6000
    temperature = 0.6
    max_calls = 8
    """Maximum number of concurrent calls."""

    def __init__(self, settings: JudgeConfig = JudgeConfig()) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(self.max_calls)
        self.usage = Usage()

    async def complete(self, prompt: str, text: str) -> str:
        """The model's answer to ``text``, made from the prompt file ``prompt``; NoAnswer if it fails."""
        raise NotImplementedError

    async def evaluate(self, case: JudgeCase) -> Verdict:
        answers = await asyncio.gather(*(self._vote(case) for _ in range(self._settings.majority_vote_n)))
        votes = tuple(vote for vote, _ in answers)
        problems = [problem for vote, problem in answers if vote is None]
        if len(problems) == len(votes):
            raise JudgeError(f"all {len(votes)} votes are missing: {'; '.join(dict.fromkeys(problems))}")
        score = majority(votes, self._settings.majority_vote_threshold)
        present = [vote for vote in votes if vote is not None]
        confidence = present.count(score) / len(votes) * (1.0 if case.next_state else _ALONE)
        return Verdict(
            score,
            round(confidence, 4),
            "votes",
            votes=votes,
            hints=await self.hints(case) if score <= 0 and case.next_state else (),
            reason=f"{present.count(score)} of {len(votes)} votes"
            + (f", {len(problems)} missing" if problems else ""),
        )

    async def hints(self, case: JudgeCase) -> tuple[str, ...]:
        """The hints that the model extracts, filtered; the user's own words if it gives no answer."""
        try:
            answer = parse_hints(await self._ask("hints", case))
        except NoAnswer:
            answer = None
        return verbatim_hints(case) if answer is None else filter_hints(answer, case)

    async def _vote(self, case: JudgeCase) -> tuple[int | None, str]:
        try:
            vote = parse_verdict(await self._ask("verdict", case))
        except NoAnswer as error:
            self.usage.num_failed += 1
            return None, str(error).rstrip(": ")
        return vote, "" if vote is not None else "the answer held no verdict"

    async def _ask(self, prompt: str, case: JudgeCase) -> str:
        marker, data = fence(_shown(case, self.message_chars))
        text = (files("openclaw_rl.judge") / "prompts" / f"{prompt}.txt").read_text("utf-8")
        async with self._slots:
            self.usage.num_calls += 1
            return await self.complete(prompt, text.replace("{marker}", marker).replace("{data}", data))


class EndpointJudge(AskingJudge):
    """The Judge protocol over HTTP; has no rules of its own."""

    max_tokens = 1024

    def __init__(self, settings: JudgeConfig) -> None:
        """The key, if any, is read from the environment."""
        if not settings.judge_url or not settings.judge_model:
            raise ValueError("the endpoint judge needs --judge-url and --judge-model")
        super().__init__(settings)
        key = os.environ.get(API_KEY)
        # Hints are requested after the votes: each of the two calls gets half of the time.
        self._timeout_s = settings.judge_timeout_s / 2
        self._client = httpx.AsyncClient(
            base_url=settings.judge_url.rstrip("/") + "/",
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(self._timeout_s, connect=min(self._timeout_s, _CONNECT_S)),
        )

    async def complete(self, prompt: str, text: str) -> str:
        body = {
            "model": self._settings.judge_model,
            "messages": [{"role": "user", "content": text}],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        try:
            # httpx's timeouts never fire if the response trickles in.
            async with asyncio.timeout(self._timeout_s):
                response = await self._client.post("chat/completions", json=body)
            response.raise_for_status()
            return self._content(response.json())
        except TimeoutError as error:
            raise NoAnswer(f"no answer within {self._timeout_s:g} s") from error
        except (httpx.HTTPError, ValueError) as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        await self._client.aclose()

    def _content(self, answer: Any) -> str:
        try:
            usage = answer.get("usage") or {}
            self.usage.prompt_tokens += int(usage.get("prompt_tokens") or 0)
            self.usage.completion_tokens += int(usage.get("completion_tokens") or 0)
            return str(answer["choices"][0]["message"]["content"] or "")
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise ValueError("the endpoint's answer is not a chat completion") from error


def parse_verdict(text: str) -> int | None:
    """The last verdict after any thinking; None if there is none or the thinking never ended."""
    found = _VERDICT.findall(_after_thinking(text) or "")
    return int(found[-1].replace("−", "-")) if found else None


def parse_hints(text: str) -> list[str] | None:
    """The hints of the last JSON object after any thinking; None if it cannot be parsed."""
    answer = _after_thinking(text) or ""
    for start in reversed([match.start() for match in re.finditer(r"\{", answer)]):
        try:
            value = json.JSONDecoder().raw_decode(answer[start:])[0]
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("hints"), list):
            return [str(hint) for hint in value["hints"]] if value.get("correction", True) is True else []
    return None


def _after_thinking(text: str) -> str | None:
    ends = list(_THINKING_END.finditer(text))
    rest = text[ends[-1].end() :] if ends else text
    return None if _THINKING_START.search(rest) else rest


def _shown(case: JudgeCase, max_chars: int) -> dict[str, Any]:
    """The case as data: recent context, the reply, and the next state with its roles."""
    state = case.next_state
    share = min(max_chars, _STATE_MESSAGES * max_chars // max(1, len(state or ())))
    return {
        "request": [_message(message, max_chars) for message in case.messages[-_CONTEXT_MESSAGES:]],
        "reply": _message({**case.reply, "role": "assistant"}, max_chars),
        "reply_was_cut_off": case.finish_reason == "length" and not case.own_limit,
        "next_state": None if state is None else [_message(message, share) for message in state],
    }


def _message(message: Message, max_chars: int) -> dict[str, Any]:
    role = str(message.get("role", ""))
    text = _cut(neutralise(bounded(text_of(message)), role), max_chars)
    called = (message.get("tool_calls") or ())[:_MOST_CALLS]
    calls = [
        f"{call.get('name')}({_cut(str(call.get('arguments')), max_chars // len(called))})" for call in called
    ]
    return {"role": role, "text": text, **({"tool_calls": calls} if calls else {})}


def _cut(text: str, max_chars: int) -> str:
    half = max_chars // 2
    if len(text) <= max_chars:
        return text
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
