"""The SDK's own client, talking to ``openclaw-rl mcp`` over standard input and output."""

import asyncio
import json
import os
import sys

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


async def main(url: str, key: str, wish: str) -> None:
    arguments = ["-m", "openclaw_rl", "mcp", "--url", url, "--key", key]
    command = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
    said = {}
    async with Client(stdio_client(command)) as client:
        said["tools"] = [tool.name for tool in (await client.list_tools()).tools]
        for name, given in (
            ("what_have_you_learned", {}),
            ("which_version", {}),
            ("evaluate", {"questions": ["Hi"]}),
            ("pause_wish", {"wish_id": wish}),
            ("forget_wish", {"wish_id": wish}),
            ("what_have_you_learned", {}),
            ("forget_wish", {"wish_id": wish}),
        ):
            result = await client.call_tool(name, given)
            texts = [block.text for block in result.content if block.type == "text"]
            said.setdefault("said", []).append([bool(result.is_error), result.structured_content, texts])
    print(json.dumps(said))


asyncio.run(main(*sys.argv[1:]))
