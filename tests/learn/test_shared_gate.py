"""A version that several people share is checked by what each of them wishes for."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import scripted_system
from openclaw_rl.types import EVERYONE

from .conftest import Speaker
from .test_wishes import judge, sampler_of


async def complain(system: ServingSystem, user: str, wish: str) -> None:
    speaker = Speaker(system, user)
    messages = [{"role": "user", "content": f"{user} asks about rain"}]
    reply = await speaker.ask(messages, "It rains.")
    messages += [
        {"role": "assistant", "content": reply["content"]},
        {"role": "user", "content": f"bad: {wish}"},
    ]
    await speaker.ask(messages, "Well.")
    await judge(system)


async def test_everybody_in_a_step_is_asked_for(tmp_path: Path) -> None:
    system = scripted_system(tmp_path / "home", policy_scope="everyone")
    people = [f"user{n}" for n in range(3)]
    texts = [
        "please begin every answer with Well now",
        "please talk like a pirate",
        "please talk like a pirate",
    ]
    for user, wish in zip(people, texts, strict=True):
        await complain(system, user, wish)
    sampler = sampler_of(system)
    await sampler.run()
    found = sampler.subjects(people, EVERYONE, seed=1)
    assert sorted(subject.wish for subject in found) == sorted(set(texts)), "the same wish once"
    by_wish = {subject.wish: subject for subject in found}
    assert {part for subject in found for part in subject.wishes} == set(texts), "as notes know them"
    assert by_wish[texts[0]].reading.can_make
    own = {wish: {ask.text for ask in by_wish[wish].asks if ask.turn_id} for wish in by_wish}
    assert own == {
        texts[0]: {"user0 asks about rain"},
        texts[1]: {f"user{n} asks about rain" for n in (1, 2)},
    }
    await system.close()


async def test_of_many_people_some_are_asked_for_each_time_others(tmp_path: Path) -> None:
    system = scripted_system(tmp_path / "home", policy_scope="everyone")
    people = [f"user{n}" for n in range(6)]
    for n, user in enumerate(people):
        await complain(
            system, user, f"please talk like a {('pirate', 'poet', 'judge', 'child', 'robot', 'king')[n]}"
        )
    sampler = sampler_of(system)
    await sampler.run()
    drawn = [{s.wish for s in sampler.subjects(people, EVERYONE, seed)} for seed in range(8)]
    assert {len(wishes) for wishes in drawn} == {4}
    assert len(set.union(*drawn)) == 6
    assert len(sampler.subjects([], EVERYONE, seed=1)) == 1, "others' requests alone"
    await system.close()
