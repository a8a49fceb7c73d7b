"""pydantic-ai in all three dialects: a conversation of two turns, a tool, a typed answer.

pip install 'pydantic-ai-slim[openai,anthropic]'
eval "$(openclaw-rl connect env)" && python examples/clients/pydantic_ai_client.py
"""

from __future__ import annotations

import os
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.settings import ModelSettings

name = os.environ["OPENAI_MODEL"]


class Choice(BaseModel):
    colour: Literal["red", "green"]


models: list[Model] = [OpenAIChatModel(name), OpenAIResponsesModel(name), AnthropicModel(name)]
for model in models:
    agent = Agent(model, instructions="Be brief.", model_settings=ModelSettings(max_tokens=24))
    first = agent.run_sync("Name three colours.")
    second = agent.run_sync("Which one is warm?", message_history=first.all_messages())
    print(type(model).__name__, repr(second.output))

typed = Agent(models[0], output_type=NativeOutput(Choice), model_settings=ModelSettings(max_tokens=60))
print(typed.run_sync("Red or green?").output)
called = Agent(models[1], output_type=Choice, model_settings=ModelSettings(max_tokens=80))
print(called.run_sync("Red or green?").output)
