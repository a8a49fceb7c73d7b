"""An episode in an environment of somebody else's; run by the environment that has it installed.

    python episode.py ENV TASKS ACTIONS

``ACTIONS`` is JSON, a list of texts and calls ``[name, {arguments}]``. It prints what was seen and said.
"""

import asyncio
import json
import sys

from openclaw_rl.envs import EnvironmentParts, create_environment
from openclaw_rl.envs.tasks import of_split
from openclaw_rl.types import Message


def action(given: str | list[object]) -> Message:
    if isinstance(given, str):
        return {"role": "assistant", "content": given}
    call = {"id": "call-1", "name": given[0], "arguments": json.dumps(given[1])}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


async def main(name: str, tasks: str, actions: list[str | list[object]]) -> None:
    env = create_environment(name, EnvironmentParts(tasks))
    splits = {split: len(of_split(env.tasks(), split)) for split in ("train", "validation", "test")}
    first, again = await env.reset(env.tasks()[0]), await env.reset(env.tasks()[0])
    said, done = [], False
    for given in actions:
        result = await env.step(action(given))
        said.append([message["content"] for message in result.observation.messages])
        done = result.done
    outcome = await env.evaluate()
    same = await env.evaluate() == outcome
    # The pool closes in another task than the one that began.
    await asyncio.shield(asyncio.create_task(env.close()))
    await env.close()
    found = {
        "splits": splits, "asked": [message["content"] for message in first.messages], "same": first == again,
        "tools": [tool["name"] for tool in first.tools], "said": said, "done": done, "steady": same,
        "solved": outcome.solved, "score": outcome.score, "facts": outcome.facts,
    }  # fmt: skip
    print(json.dumps(found))


asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
