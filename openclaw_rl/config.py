"""All settings in one frozen tree: defaults < TOML file < environment < command line.

Each field's last name is unique in the tree, so it is also its flag (``--max-running``) and its
variable (``OPENCLAW_RL_MAX_RUNNING``). Unknown keys are errors. Secrets are not settings: keys
live in their own file or in ``OPENCLAW_RL_API_KEY``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from openclaw_rl.models import DEFAULT_MODEL
from openclaw_rl.types.lora import ALL, lora_modules

_PREFIX = "OPENCLAW_RL_"
#: Short variables that scripts may use without a prefix.
_ALIASES = {"HOST": "host", "PORT": "port"}


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ServeConfig(_Section):
    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback makes the API reachable from outside."""
    port: int = Field(default=30000, ge=0, le=65535)
    """Port to listen on; 0 picks a free one."""
    auth: bool = True
    """Require an API key."""
    served_model_name: str | None = None
    """Name clients use for the model; by default the last part of the model's own name."""
    max_waiting: int = Field(default=64, ge=0)
    """Requests that may wait for a place before the next one gets a 429."""
    default_max_tokens: int = Field(default=1024, ge=1)
    """Length of a reply when the request does not limit it."""
    generate: str | None = None
    """pkg.module:function instead of the engine's own way of answering."""
    drain_timeout_s: int = Field(default=60, ge=0)
    """How long a stop waits for replies in flight."""
    upstream: str | None = None
    """Base URL (with /v1) of a server that answers instead; its key: OPENCLAW_RL_UPSTREAM_API_KEY."""
    upstream_timeout_s: float = Field(default=300, gt=0)
    """How long that server may be silent."""
    hint_memory: bool = False
    """Add what was learned of a user to the system prompt of their later requests."""


class EngineConfig(_Section):
    engine: str = "local"
    """local (in this process), or pkg.module:Class of your own."""
    model: str = DEFAULT_MODEL
    """A Hugging Face id, a local folder or a GGUF file."""
    renderer: str | None = None
    """Model family for chat templates and tool calls; by default recognised."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    dtype: str = "auto"
    """Precision of activations and of the cache: fp32, bf16, or auto (fp32 on a CPU)."""
    kernel: str = "auto"
    """Products of the frozen base: native, native@avx2, float, …, or auto (measured at start)."""
    num_threads: int = Field(default=0, ge=0)
    """CPU threads of the engine; 0 leaves it to torch."""
    max_running: int = Field(default=16, ge=1)
    """Sequences generated at the same time."""
    chunk_tokens: int = Field(default=256, ge=1)
    """Tokens of a new prompt run per step while others are being answered, at most."""
    max_step_s: float = Field(default=0.2, gt=0)
    """Where a step takes longer, prompts are run in smaller pieces, so that no stream stalls."""
    cache_tokens: int = Field(default=0, ge=0)
    """Tokens whose keys and values are kept; 0 sizes it by the machine's memory."""


class JudgeConfig(_Section):
    judge: str = "label"
    """label (a local model), endpoint (an OpenAI-compatible API), rules, or pkg.module:Class."""
    judge_url: str | None = None
    """Base URL of the judging endpoint; its key comes from OPENCLAW_RL_JUDGE_API_KEY."""
    judge_model: str | None = None
    """Name at the judging endpoint, or a local model (as --model); by default the served base weights."""
    majority_vote_n: int = Field(default=3, ge=1)
    """Votes per turn."""
    majority_vote_threshold: float = Field(default=0.5, ge=0, lt=1)
    """A score needs more than this share of the votes that could be had; else it is 0."""
    judge_concurrency: int = Field(default=4, ge=1)
    """Turns judged at the same time."""
    judge_timeout_s: float = Field(default=120, gt=0)
    """A judge that takes longer has failed, and the turn is tried again."""
    session_idle_s: float = Field(default=1800, gt=0)
    """A session without a request for so long has ended, and its last turn is judged."""


class LearnConfig(_Section):
    learn: bool = True
    """Run the learn process beside the server."""
    own_engine: bool = False
    """Load the model into the learn process too, for one that runs on another host than the server."""
    policies: Path | None = None
    """Folder of the versions, where two hosts share it; by default in the data folder."""
    rollout: str | None = None
    """pkg.module:function that uses the served model on its own, such as a simulated user."""
    train: bool = True
    """Train on what was judged; without it, turns are judged and kept."""
    algo: str = "hybrid"
    """hybrid, hybrid-sum, binary, opd, opd-topk, distill, or pkg.module:Class."""
    loss: str | None = None
    """pkg.module:function instead of the algorithm's own loss."""
    teacher: Literal["base", "frozen", "average", "current"] = "base"
    """Who is asked with the hint: base, frozen (--teacher-version), average (of the weights), or current."""
    teacher_version: int = Field(default=0, ge=0)
    """The frozen teacher's version."""
    hint_choice: Literal["sequence", "token"] = "sequence"
    """Among several hints, the one that fits the whole reply best, or each position."""
    top_k: int = Field(default=4, ge=1, le=8)
    """Candidates per position that distillation looks at."""
    teacher_k: int = Field(default=2, ge=0, le=8)
    """Hybrid: tokens of the hinted teacher's own that are taught where the student did not think of them."""
    gap_clip: float = Field(default=1.0, gt=0)
    """Bound of the gap between teacher and student, in nats."""
    rl_weight: float = Field(default=1.0, ge=0)
    """Weight of the verdict itself."""
    opd_weight: float = Field(default=1.0, ge=0)
    """Weight of the distilled hint."""
    accepted_weight: float = Field(default=1.0, ge=0)
    """Of rl_weight, what hybrid gives accepted replies."""
    retell: bool = True
    """Hybrid: a reply accepted after a complaint is taught as the answer to the question before it."""
    reward_baseline: bool = True
    """Binary RL: subtract each user's running mean of verdicts."""
    importance_cap: float = Field(default=2.0, ge=1)
    """Bound of the correction for temperature and top-p."""
    batch_size: int = Field(default=0, ge=0)
    """Samples per step (0: what the algorithm asks for); half as many more for every other user in it."""
    batch_max_age_s: float = Field(default=600, gt=0)
    """A step is taken with fewer samples once the oldest has waited this long."""
    min_signal: float = Field(default=0.1, ge=0, le=1)
    """A batch that has less to say than this waits for more."""
    max_staleness: int = Field(default=8, ge=0)
    """Versions between the one that answered and the one that learns from it."""
    replay: int = Field(default=-1, ge=-1)
    """Replies accepted earlier that a step hears again, the users taking turns (-1: the algorithm's)."""
    sinks: str = "jsonl,prometheus"
    """Where numbers of each step go: jsonl, prometheus, tensorboard, wandb, otel or your own."""
    held_out_share: float = Field(default=0.06, ge=0, lt=1)
    """Judged turns kept from training, to check new versions with."""


class TrainConfig(_Section):
    trainer: str = "local"
    """local (in the learn process), or pkg.module:Class of your own."""
    finetune: Literal["lora", "full"] = "lora"
    """A low-rank adapter beside the frozen base, or all weights."""
    lora_rank: int = Field(default=16, ge=1)
    """Rank of the adapter."""
    lora_targets: str = ALL
    """Layers with an adapter: all-linear, attention, mlp, or their names with commas between."""
    lora_alpha: int = Field(default=32, ge=1)
    """The adapter counts alpha over rank."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """For the default model; larger ones want 1e-4 with LoRA, 1e-5 with all weights."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises to its value."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Bound of the gradient's norm."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the base; LoRA only."""
    micro_batch_tokens: int = Field(default=1024, ge=1)
    """Tokens whose activations are held at once."""
    average_decay: float = Field(default=0.0, ge=0, lt=1)
    """Of the moving average of the weights; 0 keeps none."""
    train_device: str = "auto"
    """cpu, cuda, or auto."""
    train_dtype: Literal["fp32", "bf16"] = "fp32"
    """Precision of the trainer's weights."""
    train_threads: int = Field(default=0, ge=0)
    """CPU threads of the trainer; 0 leaves it to torch. They run only when nobody else wants the core."""
    seed: int = 0
    """Of the adapter's first weights."""

    @field_validator("lora_targets")
    @classmethod
    def _known_targets(cls, targets: str) -> str:
        lora_modules(targets)
        return targets


class LedgerConfig(_Section):
    ledger_url: str | None = None
    """sqlite:///PATH or postgresql://…; by default a SQLite file in the data folder."""


class Config(_Section):
    home: Path = Path("~/.openclaw-rl")
    """Data folder: keys, ledger, policies."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """debug, info, warning or error. Prompts are never logged at the default level."""
    serve: ServeConfig = ServeConfig()
    engine: EngineConfig = EngineConfig()
    judge: JudgeConfig = JudgeConfig()
    learn: LearnConfig = LearnConfig()
    train: TrainConfig = TrainConfig()
    ledger: LedgerConfig = LedgerConfig()


def fields() -> Iterator[tuple[str | None, str, FieldInfo]]:
    """Every setting as (section, name, field); the section is None at the root."""
    for name, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, _Section):
            yield from ((name, inner, inner_field) for inner, inner_field in kind.model_fields.items())
        else:
            yield None, name, field


def load_config(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Config:
    """The resolved settings. ``flags`` maps setting names to values; None means not given."""
    environment = os.environ if environment is None else environment
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    stated = _from_environment(environment) | given
    home = Path(stated.get("home") or Config.model_fields["home"].default).expanduser()
    tree = _read_file(file or home / "config.toml", required=file is not None)
    sections = {name: section for section, name, _ in fields()}
    for name, value in stated.items():
        section = sections[name]
        table = tree if section is None else tree.setdefault(section, {})
        if isinstance(table, dict):  # if not, the check below names it
            table[name] = value
    tree["home"] = Path(tree.get("home") or home).expanduser()
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        problem = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"setting {'.'.join(map(str, first['loc']))}: {problem}") from None


def to_environment(config: Config) -> dict[str, str]:
    """Variables that give a child process the very same settings."""
    tree = config.model_dump()
    stated = {name: (tree if section is None else tree[section])[name] for section, name, _ in fields()}
    return {_PREFIX + name.upper(): str(value) for name, value in stated.items() if value is not None}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    names = {name for _, name, _ in fields()}
    stated: dict[str, Any] = {}
    for variable, name in _ALIASES.items():
        if environment.get(variable):
            stated[name] = environment[variable]
    for name in names:
        if value := environment.get(_PREFIX + name.upper()):
            stated[name] = value
    return stated


def _read_file(path: Path, *, required: bool) -> dict[str, Any]:
    if not path.exists():
        if required:
            raise ValueError(f"there is no config file {path}")
        return {}
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
