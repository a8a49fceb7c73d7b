"""mini-swe-agent: every reply has to call its one tool; nothing of what it calls is run here."""

from __future__ import annotations

from typing import Any

from common import KEY, MODEL, SIZE, TURNS, URL, main
from minisweagent.agents.default import DefaultAgent
from minisweagent.models.litellm_model import LitellmModel


class Nowhere:
    """An environment in which every command says the same."""

    config: Any = None

    def execute(self, action: dict[str, Any], cwd: str = "", **more: Any) -> dict[str, Any]:
        return {"output": "a.txt", "returncode": 0, "exception_info": ""}

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        return {}

    def serialize(self) -> dict[str, Any]:
        return {}


def model(key: str = KEY, name: str = MODEL) -> LitellmModel:
    options = {"api_base": URL, "api_key": key, "num_retries": 0, "tool_choice": "required", **SIZE}
    return LitellmModel(model_name=f"openai/{name}", model_kwargs=options, cost_tracking="ignore_errors")


def plain(text: str, key: str, name: str) -> Any:
    return model(key, name).query([{"role": "user", "content": text}])["extra"]["actions"][0]


def tools() -> Any:
    return plain("List the files.", KEY, MODEL)


def turns() -> int:
    """Each step sends the calls before it, and what they came to."""
    agent = DefaultAgent(
        model(), Nowhere(), system_template="Use bash.", instance_template="{{task}}", step_limit=len(TURNS),
        cost_limit=0,
    )  # fmt: skip
    agent.run("List the files.")
    return len(TURNS)


main(plain, tools=tools, turns=turns)
