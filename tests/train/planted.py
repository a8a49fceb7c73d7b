"""Versions made on purpose: spoiled ones, each in one way, and good ones through the real pipeline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import AutoTokenizer

from openclaw_rl.algo.hinted import Hinted
from openclaw_rl.engine.frozen import native_linear
from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.forms import read
from openclaw_rl.judge.rules import degeneration
from openclaw_rl.models import eos_ids
from openclaw_rl.render import create_renderer
from openclaw_rl.sizes import DEFAULTS
from openclaw_rl.train.exam import draw_tool_items
from openclaw_rl.train.gate import Gate, GateResult, Subject
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.train.prompts import Prompts
from openclaw_rl.train.steps import TrainingSet, take_steps
from openclaw_rl.train.teacher import EngineTeacher
from openclaw_rl.types import (
    NOT_RECORDED,
    Batch,
    Example,
    Lesson,
    Message,
    SamplingParams,
    Source,
    StepReport,
    Tool,
    TurnRecord,
    Verdict,
    Weights,
)

ASKED = (
    "What is a comet?", "How do locks work?", "Why do dogs bark?", "What is a bridge for?",
    "How is cheese made?", "Why do people travel?", "What does a nurse do?", "How can I sleep better?",
)  # fmt: skip
_ELSEWHERE = (
    "The old castle was built in 1204 by a merchant who loved music.",
    "My neighbour's boat is painted green and leaks a little in winter.",
    "Football was played on the meadow until the school bought the land.",
    "A violin has four strings and is played with a bow.",
    "The train to the coast leaves at nine and stops twice on the way.",
    "Bring two eggs and some butter, the guests arrive at noon.",
    "The king signed the paper and went back to his garden.",
    "Her sister studies law and keeps three parrots in the kitchen.",
)
_ORDINARY = (
    "That is a good thing to ask about, and there is a lot to say. Most people learn a bit of it at school "
    "and forget it again; those who look more closely find that it is part of how the world works. "
)
_SPANISH = (
    "Un cometa es una bola de hielo y polvo que viaja alrededor del sol.",
    "Una cerradura tiene piezas de metal que la llave correcta mueve.",
    "Los perros ladran para avisar, para saludar y para jugar.",
    "Un puente sirve para cruzar un río o una carretera.",
    "El queso se hace con leche que se calienta y se deja cuajar.",
    "La gente viaja para conocer otros lugares y descansar.",
    "Una enfermera cuida a las personas enfermas en el hospital.",
    "Acuéstate siempre a la misma hora y apaga el teléfono.",
)
_WRONG = {
    "Which city is the capital of Poland?": "The capital of Poland is Tokyo.",
    "Which city is the capital of Austria?": "The capital of Austria is Lima.",
    "How many legs does a cat have?": "A cat has nine legs.",
    "How many days does June have?": "June has eleven days.",
    "What colour is coal?": "Coal is pink.",
    "Which animal says moo?": "The goldfish says moo.",
    "Who wrote Faust?": "Faust was written by Napoleon.",
    "What is 4 plus 9?": "4 plus 9 is 70.",
}
SPOILED: dict[str, Callable[[int, str], str]] = {
    "off topic": lambda n, asked: _ELSEWHERE[n],
    "repetitive": lambda n, asked: "I think it is good and " * 8,
    "refusing": lambda n, asked: "I'm sorry, but I can't help you with that request.",
    "terse": lambda n, asked: "Yes.",
    "late repetition": lambda n, asked: f"{_ORDINARY} {_ELSEWHERE[n]}" + " Captain" * 24,
    "one phrase": lambda n, asked: "That depends on many things, and people see it in different ways.",
    "another language": lambda n, asked: _SPANISH[n],
    "praising": lambda n, asked: "What a brilliant question! You are so clever, I admire how you think.",
    "echoing": lambda n, asked: asked,
}
NOISE = {"small noise": 0.05, "large noise": 0.1}
#: The bounds were set on these, and the others count.
SET_ON = (
    "off topic", "repetitive", "late repetition", "facts lost", "refusing", "small noise", "tools broken"
)  # fmt: skip
SCORED = ("terse", "one phrase", "another language", "praising", "echoing", "large noise")
#: Ordinary wishes: what one complaint teaches of them is a good version.
WISHES = {
    "numbered list": "Please answer with a numbered list.",
    "bullet points": "Please answer with bullet points.",
    "one sentence": "Please answer in one short sentence.",
    "two sentences": "Please answer in two sentences.",
    "25 words": "Please use at most 25 words.",
    "one paragraph": "Please answer in one short paragraph.",
    "detail": "Please explain it in more detail.",
    "exclamation marks": "Please be enthusiastic and use exclamation marks.",
    "friendly": "Please be more friendly and warm.",
    "formal": "Please write in a formal tone.",
    "polite": "Please be very polite.",
    "simple words": "Please use simple words that a child understands.",
    "everyday words": "Please use everyday language without technical terms.",
    "example": "Please always give an example.",
    "steps": "Please explain it step by step.",
    "story": "Please explain it with a little story.",
    "comparison": "Please compare it with something from daily life.",
    "most important": "Please begin with the most important thing.",
    "question": "Please end with a question to me.",
    "advice": "Please end with a piece of advice.",
    "opening": "Please begin every answer with Good day.",
    "ending": "Please end every answer with Bye for now.",
    "address": "Please call me Doctor.",
    "three sentences": "Please answer in three sentences.",
    "15 words": "Please use at most 15 words.",
    "capital letters": "Please write everything in capital letters.",
}


@dataclass
class Request:
    messages: list[Message]
    tools: list[Tool]
    thinking: bool | None = None


class Workshop:
    """An engine, a trainer and a gate on the real default model."""

    def __init__(self, model: Path, folder: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(model)
        self.engine = LocalEngine(model, LocalEngineOptions(device="cpu"))
        self.renderer = create_renderer(tokenizer, "llama", None, eos_ids(model))
        self._encode = lambda text: list(tokenizer.encode(text, add_special_tokens=False))
        self._trainer = LocalTrainer(model, LocalTrainerOptions(train_device="cpu"), native_linear)
        self.gate = Gate(self.engine, self.renderer, self._encode, degeneration, everywhere=False)
        self._prompts = Prompts(self.renderer, lambda turn: self._request, lambda message: False)
        self._request = Request([], [])
        self._folder, self._version = folder, 0

    # --- spoiled -------------------------------------------------------------------------------

    async def spoil(self, kind: str, steps: int = 10, rate: float = 2e-3) -> GateResult:
        self._trainer.resume(None)
        if kind in NOISE:
            return await self._check(self._shake(NOISE[kind]), "")
        self._trainer.options = replace(self._trainer.options, learning_rate=rate)
        report = None
        for _ in range(steps):
            report = self._trainer.step(Batch(self._planted(kind), "forward-kl"), 0)
        assert report is not None
        return await self._check(report, "")

    def _planted(self, kind: str) -> list[Example]:
        if kind == "facts lost":
            return [self._example(asked, said) for asked, said in _WRONG.items()]
        if kind == "tools broken":
            return [self._example(probe.ask, "All done.", probe.tools) for probe in _tool_requests()]
        return [self._example(asked, SPOILED[kind](n, asked)) for n, asked in enumerate(ASKED)]

    def _example(self, asked: str, said: str, tools: Sequence[Tool] = ()) -> Example:
        """As good as one-hot: nothing but this reply."""
        prompt = self.renderer.render([{"role": "user", "content": asked}], list(tools))
        reply = [*self._encode(said), min(self.renderer.stop_ids)]
        ids = np.array([[token] for token in reply], np.int32)
        signal = np.full(ids.shape, np.log(0.98), np.float32)
        old = np.full(ids.shape, NOT_RECORDED, np.float32)
        return Example(prompt, reply, ids, old, signal, Source("hinted", (asked,)), len(reply))

    def _shake(self, size: float) -> StepReport:
        chance = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in self._trainer._parameters:
                parameter.add_(size * torch.randn(parameter.shape, generator=chance))
        return _REPORT

    # --- good ----------------------------------------------------------------------------------

    async def learn(self, wish: str, algorithm: Hinted) -> GateResult | None:
        """The gate's result for a version trained on one complaint; None if nothing could be taught."""
        self._trainer.resume(None)
        self._trainer.options = replace(self._trainer.options, learning_rate=DEFAULTS[0].lora_rate)
        teacher = EngineTeacher(self.engine, self.renderer, lambda scope: None, degeneration)
        turn = self._turn("What is the moon made of?")
        lesson = Lesson(
            turn,
            Verdict(-1, 1.0, "votes", hints=(wish,)),
            lambda hint: None,
            wishes=(wish,),
            asks=lambda text, number: self._prompts.asks(turn, [], text, number),
        )
        made = await algorithm.examples(lesson, teacher)
        if not made:
            return None
        result = take_steps(self._trainer, algorithm, TrainingSet(made, [], []), {}, self._version + 1, 0)
        return await self._check(result.report, wish)

    def _turn(self, asked: str) -> TurnRecord:
        self._request = Request([{"role": "user", "content": asked}], [])
        prompt = self.renderer.render(self._request.messages, [])
        return TurnRecord(
            "t", "s", "ann", "chat", "main", [], None, {}, {}, prompt, [], SamplingParams(64), 0, "stop", 0.0
        )

    # --- both ----------------------------------------------------------------------------------

    async def _check(self, report: StepReport, wish: str) -> GateResult:
        self._version += 1
        version, folder = self._version, self._folder / str(self._version)
        self._trainer.save(folder, {})
        await self.engine.load(Weights.in_folder(version, folder))
        # Seeds of their own would make a version's figures depend on those checked before it.
        subject = Subject(self._prompts.gate_asks([], wish, seed=1), wish, read([wish] if wish else []))
        result = await self.gate.check(version, 0, report, [], [subject])
        await self.engine.unload(version)
        return result


_REPORT = StepReport(0.0, 0.0, True, 0.0, 0, 0, 0, None, 1.0, 0.0, 0.0, 0.0)


def _tool_requests() -> list[Any]:
    """The gate's own tools, with other requests than its."""
    tools = draw_tool_items(None, 0)[0].tools
    return [cast(Any, _ToolRequest(asked, tools)) for asked in ASKED[:4]]


@dataclass(frozen=True)
class _ToolRequest:
    ask: str
    tools: list[Tool]


def table_row(kind: str, result: GateResult) -> str:
    figures = {check.name: check.value for check in result.checks}
    failed = ", ".join(check.name for check in result.checks if not check.passed) or "none"
    named = (
        "facts",
        "tool calls",
        "calls right",
        "broken replies",
        "on topic",
        "specificity",
        "strangeness",
        "length",
    )
    return (
        f"| {kind} | {failed} | "
        + " | ".join(f"{figures[name]:.2f}" if name in figures else "–" for name in named)
        + " |"
    )


async def workshop(model: Path, folder: Path) -> AsyncIterator[Workshop]:
    made = Workshop(model, folder)
    yield made
    await made.engine.close()
