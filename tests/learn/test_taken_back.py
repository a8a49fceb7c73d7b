"""A wish that is taken back is undone exactly, whatever else its person wishes for."""

from __future__ import annotations

from openclaw_rl.capture.erase import CHANGED
from openclaw_rl.capture.wishes import REPLACED, TAKEN_BACK, list_wishes
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.train.rollback import Rollback
from openclaw_rl.types import EVERYONE

from .test_changed_wishes import PIRATE, hints, publish
from .test_wishes import LISTS, converse, sampler_of, wishes_of

STOP = "bad: you can stop with the tables"


def look(system: ServingSystem) -> bool:
    policies = system.ledgers.policies
    return Rollback(policies, wishes_of(system), system.store, "", lambda line: None).look(EVERYONE)


def statuses(system: ServingSystem) -> dict[str, str]:
    return {wish.text: wish.status for wish in list_wishes(system.ledgers.learn, None)}


def keep_weights(system: ServingSystem, version: int) -> None:
    def write(folder: object) -> None:
        (folder / "adapter_model.safetensors").write_bytes(b"")  # type: ignore[operator]

    system.store.write(version, write, {})


async def test_what_was_learned_for_it_goes_while_another_is_wished_for(system: ServingSystem) -> None:
    await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    publish(system)
    second, _ = await converse(system, "another", f"bad: {PIRATE}")
    await sampler_of(system).run()
    publish(system)
    await converse(system, "a third one", STOP)
    await sampler_of(system).run()
    assert wishes_of(system).current("default", EVERYONE) == PIRATE
    assert look(system)
    assert system.ledgers.policies.serving(EVERYONE) == 0
    assert statuses(system)[LISTS] == TAKEN_BACK
    await sampler_of(system).run()
    assert hints(system, second) == {PIRATE}, "the other one is taught again, without it"
    assert publish(system) == 3
    assert not look(system), "once"


async def test_what_was_learned_before_it_serves_on(system: ServingSystem) -> None:
    await converse(system, "another", f"bad: {PIRATE}")
    await sampler_of(system).run()
    keep_weights(system, publish(system))
    await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    keep_weights(system, publish(system))
    await converse(system, "a third one", STOP)
    await sampler_of(system).run()
    look(system)
    policies = system.ledgers.policies
    assert policies.serving(EVERYONE) == 1
    undone = policies.policy(2)
    assert undone is not None
    assert undone.gate["reason"] == CHANGED
    assert not system.store.exists(2)
    assert system.store.exists(1)


async def test_what_it_had_replaced_does_not_come_back(system: ServingSystem) -> None:
    """A robot, then a pirate: taken back, neither is wanted."""
    one, two = "please talk like a robot", PIRATE
    for said in (one, two):
        await converse(system, f"a question before {said}", f"bad: {said}")
        await sampler_of(system).run()
        keep_weights(system, publish(system))
    assert statuses(system)[one] == REPLACED
    await converse(system, "a third one", "bad: you don't have to talk like a pirate any more")
    await sampler_of(system).run()
    look(system)
    assert system.ledgers.policies.serving(EVERYONE) == 0
    assert statuses(system) == {one: REPLACED, two: TAKEN_BACK}


async def test_one_that_was_never_learned_changes_no_version(system: ServingSystem) -> None:
    await converse(system, "another", f"bad: {PIRATE}")
    await sampler_of(system).run()
    keep_weights(system, publish(system))
    await converse(system, "a question", f"bad: {LISTS}")
    await sampler_of(system).run()
    await converse(system, "a third one", STOP)
    await sampler_of(system).run()
    assert not look(system)
    assert system.ledgers.policies.serving(EVERYONE) == 1
    assert statuses(system)[LISTS] == TAKEN_BACK
