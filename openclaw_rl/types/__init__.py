"""What the stages exchange, and the protocols they plug into; one file per stage.

Plain dataclasses and Protocols: no pydantic, no torch, no web library, so that every stage and
every machine can import them. A log-prob here is always one that an engine produced for exactly
the token it stands beside; nothing in these files pads, guesses or re-tokenises.
"""

from openclaw_rl.types.base import (
    BASE_VERSION,
    FinishReason,
    FloatArray,
    IntArray,
    Json,
    Message,
    Tool,
    TurnKind,
)
from openclaw_rl.types.capture import Capture, ChatRequest, Placement, TurnRecord
from openclaw_rl.types.engine import (
    Capabilities,
    Engine,
    EngineStatus,
    Generate,
    GenerateRequest,
    Priority,
    Rollout,
    SamplingParams,
    ScoreRequest,
    Scores,
    Token,
)
from openclaw_rl.types.judging import Judge, JudgeCase, JudgeError, Verdict
from openclaw_rl.types.learning import (
    Algorithm,
    Batch,
    BatchItem,
    Lesson,
    Loss,
    Policy,
    Sample,
    Scorer,
    Sink,
    StepReport,
    Teaching,
    Trainer,
)
from openclaw_rl.types.render import Delta, Detokenizer, Renderer, Reply, ReplyParser, ToolCall

__all__ = [
    "BASE_VERSION",
    "Algorithm",
    "Batch",
    "BatchItem",
    "Capabilities",
    "Capture",
    "ChatRequest",
    "Delta",
    "Detokenizer",
    "Engine",
    "EngineStatus",
    "FinishReason",
    "FloatArray",
    "Generate",
    "GenerateRequest",
    "IntArray",
    "Json",
    "Judge",
    "JudgeCase",
    "JudgeError",
    "Lesson",
    "Loss",
    "Message",
    "Placement",
    "Policy",
    "Priority",
    "Renderer",
    "Reply",
    "ReplyParser",
    "Rollout",
    "Sample",
    "SamplingParams",
    "ScoreRequest",
    "Scorer",
    "Scores",
    "Sink",
    "StepReport",
    "Teaching",
    "Token",
    "Tool",
    "ToolCall",
    "Trainer",
    "TurnKind",
    "TurnRecord",
    "Verdict",
]
