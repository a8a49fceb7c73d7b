"""Chat completions requests as clients send them; unknown fields are kept and counted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from openclaw_rl.serve.dialect import Open, WireRequest


class ContentPart(Open):
    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Open):
    name: str
    arguments: str = "{}"


class CustomCall(Open):
    name: str
    input: str = ""


class FunctionToolCall(Open):
    id: str = ""
    function: FunctionCall


class CustomToolCall(Open):
    id: str = ""
    type: Literal["custom"]
    custom: CustomCall


class MessageIn(Open):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    tool_calls: list[FunctionToolCall | CustomToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class FunctionDefinition(Open):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class CustomDefinition(Open):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    format: dict[str, Any] | None = None


class ToolIn(Open):
    type: str = "function"
    function: FunctionDefinition | None = None
    custom: CustomDefinition | None = None


class NamedFunction(Open):
    name: str


class NamedTool(Open):
    type: Literal["function"] = "function"
    function: NamedFunction


class NamedCustomTool(Open):
    type: Literal["custom"]
    custom: NamedFunction


class AllowedTools(Open):
    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedTool | NamedCustomTool]


class SomeTools(Open):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class StreamOptions(Open):
    include_usage: bool | None = None


TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]


class ChatCompletionRequest(WireRequest):
    model: str
    messages: Annotated[list[MessageIn], Field(min_length=1)]
    stream_options: StreamOptions | None = None
    tools: list[ToolIn] | None = None
    tool_choice: Literal["none", "auto", "required"] | SomeTools | NamedTool | NamedCustomTool | None = None
    functions: list[FunctionDefinition] | None = None
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
