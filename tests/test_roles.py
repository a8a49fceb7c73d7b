"""Where what was learned holds."""

from __future__ import annotations

import pytest

from openclaw_rl.roles import alike, holds, is_plain, role_of, system_prompt, with_roles

AGENT = " ".join(
    f"Rule {n}: when the {thing} is open, look at the {thing} before you touch the {other}, and say so."
    for n, (thing, other) in enumerate(
        (a, b) for a in ("file", "window", "door", "letter", "shop") for b in ("list", "key", "box", "lamp")
    )
)
DATES = "Extract the date. Answer only with the date as YYYY-MM-DD."


@pytest.mark.parametrize(
    "prompt", ["", "You are a helpful assistant.", "You are a helpful AI assistant named SmolLM"]
)
def test_a_chat_has_no_role(prompt: str) -> None:
    assert is_plain(prompt)
    assert holds([], prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        DATES,
        "You are an assistant that answers only in JSON.",
        "You are a router. Name one tool.",
        "Always translate into German.",
        AGENT,
    ],
)
def test_a_job_has_one(prompt: str) -> None:
    assert not is_plain(prompt)
    assert not holds([], prompt)
    assert holds([role_of(prompt)], prompt)


def test_the_same_agent_on_another_day_is_the_same_role() -> None:
    other = AGENT.replace("Rule 3", "Rule three, as of Monday 12 May,") + " Today is 2026-05-12, 14:03."
    assert other != AGENT
    assert alike(role_of(AGENT), role_of(other))


def test_another_job_is_another_role() -> None:
    assert not alike(role_of(DATES), role_of(AGENT))
    assert not alike(role_of(DATES), role_of("Extract the city. Answer only with the city."))
    assert not alike(role_of("You are a pirate."), role_of("You are a poet."))


def test_roles_are_kept_once_and_cannot_be_read() -> None:
    roles = with_roles([], ["", DATES, AGENT, DATES, "You are a helpful assistant."])
    assert len(roles) == 2
    assert all(isinstance(each, int) for role in roles for each in role)
    assert max(map(len, roles)) <= 64


def test_the_system_prompt_is_what_stands_before_the_conversation() -> None:
    messages = [
        {"role": "system", "content": "One."},
        {"role": "system", "content": "Two."},
        {"role": "user", "content": "Hello"},
        {"role": "system", "content": "The user has opened a file."},
    ]
    assert system_prompt(messages) == "One.\nTwo."
    assert system_prompt([{"role": "user", "content": "Hello"}]) == ""


def test_of_a_very_long_prompt_only_the_beginning_is_looked_at_and_kept() -> None:
    """The newest prompts are kept in memory, and the request waits until one is read."""
    words = " ".join(f"word{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}" for n in range(6_000))
    assert role_of(f"{words}{' more' * 1_000_000}") == role_of(f"{words}{' other' * 1_000_000}")
