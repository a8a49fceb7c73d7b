"""An episode with tools of an MCP server; run by the environment that has the SDK."""

import asyncio
import json
import os
import sys
from pathlib import Path

from openclaw_rl.envs import EnvironmentParts, create_environment


def call(name: str, **arguments: object) -> dict[str, object]:
    given = {"id": "1", "name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [given]}


async def main(folder: Path) -> None:
    row = {"prompt": "What is three times 14?", "answer": "42", "tools": ["add"]}
    (folder / "tasks.jsonl").write_text(json.dumps(row))
    server = {"command": sys.executable, "args": [str(Path(__file__).with_name("sums_server.py"))]}
    (folder / "tools.json").write_text(json.dumps({"mcpServers": {"sums": server}}))
    os.environ["TOOLS_CONFIG"] = str(folder / "tools.json")
    env = create_environment("toolcall", EnvironmentParts(str(folder / "tasks.jsonl")))
    seen = await env.reset(env.tasks()[0])
    said = [
        (await env.step(given)).observation.messages[0]["content"]
        for given in (
            call("triple", number=14),
            call("triple", number="x"),
            call("fail"),
            call("add", a=1, b=2),
        )
    ]
    await env.step(call("answer", answer="42"))
    outcome = await env.evaluate()
    # The pool closes in another task than the one that began.
    await asyncio.shield(asyncio.create_task(env.close()))
    print(
        json.dumps({"tools": [tool["name"] for tool in seen.tools], "said": said, "solved": outcome.solved})
    )


asyncio.run(main(Path(sys.argv[1])))
