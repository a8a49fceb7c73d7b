"""How many of many constrained replies satisfy their constraint?

    python bench/constrained.py [--number 200]

A JSON-schema reply and a tool call named by tool_choice, from the default model at temperature 1. A reply
counts if it parses, matches the schema's types and ended by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from typing import Any

from tqdm.asyncio import tqdm
from transformers import AutoConfig, AutoTokenizer

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model
from openclaw_rl.render import collect, create_renderer
from openclaw_rl.types import GenerateRequest, SamplingParams

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "population": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        "rating": {"type": "number"},
        "kind": {"enum": ["town", "city", "village"]},
    },
    "required": ["city", "population", "tags", "rating", "kind"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "get_weather",
        "description": "The weather of a city for some days.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
    {"name": "search", "description": "Search the web.", "parameters": {
        "type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}},
]  # fmt: skip


def is_city(text: str) -> bool:
    value = json.loads(text)
    return (
        value.keys() == SCHEMA["properties"].keys()
        and isinstance(value["city"], str)
        and isinstance(value["population"], int)
        and all(isinstance(tag, str) for tag in value["tags"])
        and isinstance(value["rating"], int | float)
        and value["kind"] in ("town", "city", "village")
    )


async def run(number: int) -> None:
    path = resolve_model(DEFAULT_MODEL, default_cache_dir())
    renderer: Any = create_renderer(
        AutoTokenizer.from_pretrained(path), AutoConfig.from_pretrained(path).model_type
    )
    engine = LocalEngine(path)

    def is_call(text: str) -> bool:
        parser = renderer.parser([], TOOLS)
        calls = collect([*parser.feed(text), *parser.finish()]).tool_calls
        arguments = json.loads(calls[0].arguments)
        return len(calls) == 1 and calls[0].name == "get_weather" and isinstance(arguments["days"], int)

    async def count(
        messages: Any, tools: Any, grammar: str, is_good: Callable[[str], bool], what: str
    ) -> None:
        prompt = renderer.render(messages, tools)

        async def one(seed: int) -> bool:
            request = GenerateRequest(
                prompt, SamplingParams(1024, seed=seed), stop_ids=renderer.stop_ids, grammar=grammar
            )
            tokens = [token async for token in engine.generate(request)]
            detokenizer = renderer.detokenizer()
            text = "".join(detokenizer.feed(token.id) for token in tokens) + detokenizer.finish()
            try:
                return is_good(text) and tokens[-1].finish_reason == "stop"
            except (ValueError, KeyError, IndexError):
                return False

        good = await tqdm.gather(*(one(seed) for seed in range(number)), desc=what)
        print(f"{what}: {sum(good)} of {number}", flush=True)

    ask = "Tell me about Paris, as JSON."
    await count([{"role": "user", "content": ask}], [], renderer.json_grammar(SCHEMA), is_city, "JSON schema")
    ask = "What will the weather be in Rome for the next 3 days?"
    await count(
        [{"role": "user", "content": ask}],
        TOOLS,
        renderer.tool_grammar(TOOLS[:1]),
        is_call,
        "named tool call",
    )
    await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=200)
    asyncio.run(run(parser.parse_args().number))


if __name__ == "__main__":
    main()
