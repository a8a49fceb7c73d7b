"""LangChain's own suite for chat models (``langchain-tests``), against this server in its three dialects.

Run by ``make test-clients`` with the packages of ``.venv-clients/all``. Tests that want a cleverer model than
the default one may fail; all that ask something of the server must pass.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

MODEL = os.environ["OPENAI_MODEL"]
#: What a model of 135M parameters gets right only by chance.
TOO_CLEVER = {
    "test_tool_calling": "the right number as an argument",
    "test_tool_calling_async": "the right number as an argument",
    "test_bind_runnables_as_tools": "the right words as an argument",
    "test_json_mode": "the keys that the question names",
    "test_structured_output_pydantic_2_v1": "no keys beyond those of a schema that allows more",
    "test_agent_loop": "to choose a tool by itself, and to use what it said",
    "test_unicode_tool_call_integration": "to copy Japanese, Chinese and Korean words",
}


@pytest.fixture(autouse=True)
def model_is_small(request: pytest.FixtureRequest) -> None:
    ability = TOO_CLEVER.get(request.node.originalname)
    if ability:
        request.applymarker(pytest.mark.xfail(reason=f"wants {ability}", strict=False))


class Server(ChatModelIntegrationTests):
    """Text and tools; no pictures, sound or files."""

    #: Room for two texts of a schema at their longest; without chance, so that it ends the same every time.
    params = {"model": MODEL, "max_tokens": 600, "temperature": 0}  # noqa: RUF012

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return self.params

    @property
    def model_override_value(self) -> str:
        return MODEL


class TestChat(Server):
    # LangChain asks only OpenAI's own address for the usage of a stream unless it is told to.
    params = {**Server.params, "stream_usage": True}  # noqa: RUF012
    supports_json_mode = True

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI


class TestResponses(TestChat):
    params = {**Server.params, "use_responses_api": True}  # noqa: RUF012


class TestMessages(Server):
    supports_anthropic_inputs = True

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic
