"""LiteLLM as a client, in all three dialects.

pip install litellm
eval "$(openclaw-rl connect env)" && python examples/clients/litellm_client.py
"""

from __future__ import annotations

import os
from typing import Any

import litellm

model = os.environ["OPENAI_MODEL"]
openai: Any = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
talk: list[Any] = [{"role": "user", "content": "Name three colours."}]

first = litellm.completion(f"openai/{model}", talk, max_tokens=24, **openai)
print(first.choices[0].message.content)
talk += [
    {"role": "assistant", "content": first.choices[0].message.content},
    {"role": "user", "content": "Which one is warm?"},
]
for chunk in litellm.completion(f"openai/{model}", talk, max_tokens=24, stream=True, **openai):
    print(chunk.choices[0].delta.content or "", end="", flush=True)

response = litellm.responses(
    input="Name three animals.", model=f"openai/{model}", max_output_tokens=24, **openai
)
print("\n", response.output[0].content[0].text)

anthropic: Any = {"api_base": os.environ["ANTHROPIC_BASE_URL"], "api_key": os.environ["ANTHROPIC_API_KEY"]}
message = litellm.completion(f"anthropic/{model}", talk[:1], max_tokens=24, **anthropic)
print(message.choices[0].message.content)
