"""The official client over a socket: conversations, and replies that are made in the background."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system, wait_until
from tests.listening import listening


@dataclass
class Live:
    """A scripted system behind a real socket, in a thread."""

    system: ServingSystem
    client: openai.OpenAI

    @property
    def engine(self) -> ScriptedEngine:
        assert isinstance(self.system.engine, ScriptedEngine)
        return self.system.engine


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    system = scripted_system(tmp_path / "home")
    key = str(system.keys.key_of("default"))
    with (
        listening(system) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client,
    ):
        yield Live(system, client)


def test_conversations(live: Live) -> None:
    client = live.client
    made = client.conversations.create(
        items=[{"role": "user", "content": "My name is Ada."}], metadata={"topic": "names"}
    )
    assert made.metadata == {"topic": "names"}
    live.engine.say("Hello Ada.")
    first = client.responses.create(model="scripted", input="Say hello.", conversation=made.id)
    assert first.conversation is not None
    assert (first.conversation.id, first.output_text) == (made.id, "Hello Ada.")
    live.engine.say("Bye Ada.")
    with client.responses.stream(model="scripted", input="Bye.", conversation={"id": made.id}) as stream:
        assert stream.get_final_response().output_text == "Bye Ada."
    items = client.conversations.items.list(made.id, order="asc", limit=2)
    said = [item.content[0].text for item in items if item.type == "message"]  # type: ignore[union-attr]
    assert said == ["My name is Ada.", "Say hello.", "Hello Ada.", "Bye.", "Bye Ada."], "page after page"
    added = client.conversations.items.create(made.id, items=[{"role": "user", "content": "Wait."}])
    item = client.conversations.items.retrieve(added.first_id, conversation_id=made.id)
    assert item.type == "message"
    assert client.conversations.items.delete(added.first_id, conversation_id=made.id).id == made.id
    assert client.conversations.update(made.id, metadata={"topic": "ends"}).metadata == {"topic": "ends"}
    assert client.conversations.retrieve(made.id).created_at == made.created_at
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)


def test_background(live: Live) -> None:
    client = live.client
    begun = client.responses.create(model="scripted", input="Hi", background=True)
    assert (begun.status, begun.background) == ("queued", True)
    wait_until(lambda: client.responses.retrieve(begun.id).status == "completed", "it is completed")
    assert client.responses.retrieve(begun.id).output_text == "Hello!"
    live.engine.say("never said", pause_after=0)
    again = client.responses.create(model="scripted", input="Hi", background=True)
    assert client.responses.retrieve(again.id).status == "in_progress"
    assert client.responses.cancel(again.id).status == "cancelled"
    assert client.responses.cancel(again.id).status == "cancelled"
    assert live.system.gateway.num_inflight == 0
