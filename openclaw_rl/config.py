"""All settings in one frozen tree: defaults < TOML file < environment < command line.

The sections of the engine and of training are plain dataclasses in ``settings.py``; the others are here.
Each field's name is unique in the tree, so it is also its flag (``--max-running``) and its variable
(``OPENCLAW_RL_MAX_RUNNING``). Unknown keys are errors. Secrets are not settings: keys are in their own
file or in ``OPENCLAW_RL_API_KEY``.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openclaw_rl.errors import did_you_mean
from openclaw_rl.known_names import MOVED, MOVED_NAMES, check_moved, options_of, take_moved, understood
from openclaw_rl.settings import EngineConfig, TrainConfig

_PREFIX = "OPENCLAW_RL_"
#: Variables that also work without the prefix.
_ALIASES = {"HOST": "host", "PORT": "port"}
#: (Section, setting that chooses an implementation, setting with that implementation's own options).
_OWN = (
    ("engine", "engine", "engine_options"),
    ("train", "trainer", "trainer_options"),
    ("learn", "algo", "algo_options"),
    ("learn", "env_algo", "env_algo_options"),
)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ServeConfig(_Section):
    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback makes the API reachable from outside."""
    port: int = Field(default=30000, ge=0, le=65535)
    """Port to listen on; 0 picks a free one."""
    auth: bool = True
    """Require an API key."""
    people_folder: Path | None = None
    """Folder of keys.json and users.json, if several hosts share it; by default the data folder."""
    allow_origin: str = ""
    """Origins whose pages may use the API from a browser (CORS), such as https://chat.example.org."""
    served_model_name: str | None = None
    """Name by which clients request the model; by default the last part of the model's own name."""
    max_waiting: int = Field(default=64, ge=0)
    """Requests that may wait in the queue; further ones get a 429."""
    allowed_hosts: str = ""
    """Comma-separated host names that a server without keys (--no-auth) accepts besides its address."""
    max_connections: int = Field(default=512, ge=8)
    """Maximum number of connections; a further one closes the one that has been idle longest."""
    max_request_mb: int = Field(default=8, ge=1)
    """Maximum size of a request with a conversation, in MB; a larger one is refused before it is read."""
    default_max_tokens: int = Field(default=1024, ge=1)
    """Maximum length of a reply in tokens, if the request sets none."""
    generate: str | None = None
    """pkg.module:function that generates replies instead of the engine's own generate."""
    drain_timeout_s: int = Field(default=60, ge=0)
    """How long a stopping server waits for replies in progress."""
    upstream: str | None = None
    """Base URL (with /v1) of an upstream server that answers instead; key: OPENCLAW_RL_UPSTREAM_API_KEY."""
    upstream_timeout_s: float = Field(default=300, gt=0)
    """How long the upstream server may send nothing."""
    take_over: bool = False
    """Train the local model on the upstream server's answers and let it take over what it does as well."""
    upstream_terms: Literal["unknown", "allow-learning"] = "unknown"
    """Whether the upstream's terms allow training another model on its answers; required by --take-over."""
    upstream_model: str | None = None
    """With --take-over: the upstream model's name; by default the first one that the server lists."""
    upstream_first_token_s: float = Field(default=30, gt=0)
    """With --take-over: if the first token takes longer, the local model answers instead."""
    take_over_shares: str = "0.05,0.1,0.25,0.5,1"
    """With --take-over: the increasing shares of conversations that the local model gets."""
    policy_scope: Literal["auto", "user", "group", "everyone"] = "auto"
    """One policy per user, per group, or for everyone; auto: per user as soon as there is a second key."""
    store_false: Literal["not-retrievable", "off-the-record"] = "not-retrievable"
    """Meaning of store: false in a request: stored and learned from but not retrievable, or not stored."""
    notes: Literal["off", "ask", "on"] = "on"
    """State a person's wishes in their system prompt until a version has learned them; ask: once approved."""
    note_tokens: int = Field(default=256, ge=16)
    """Maximum length of such a note in tokens; the newest wishes come first."""
    elsewhere: Literal["base", "learned"] = "base"
    """What answers under a system prompt without complaints: the base, or the learned version."""
    canary_share: float = Field(default=0.05, ge=0, le=0.5)
    """Share of conversations that stay with the previous version for a while, to compare verdicts on both."""
    canary_s: float = Field(default=600, ge=0)
    """How long they stay with it after a version was published."""


class JudgeConfig(_Section):
    judge: str = "label"
    """label (a local model), endpoint (an OpenAI-compatible API), rules, or pkg.module:Class."""
    judge_url: str | None = None
    """Base URL of the judging endpoint; key: OPENCLAW_RL_JUDGE_API_KEY."""
    judge_model: str | None = None
    """Model name at the judging endpoint, or a local model (as --model); by default the served base."""
    majority_vote_n: int = Field(default=3, ge=1)
    """Votes per turn."""
    majority_vote_threshold: float = Field(default=0.5, ge=0, lt=1)
    """A score needs more than this share of the present votes; otherwise it is 0."""
    judge_concurrency: int = Field(default=4, ge=1)
    """Turns judged at the same time."""
    judge_timeout_s: float = Field(default=120, gt=0)
    """A judge that takes longer counts as failed, and the turn is tried again."""
    session_idle_s: float = Field(default=1800, gt=0)
    """A session without a request for this long counts as ended, and its last turn is judged."""


class LearnConfig(_Section):
    learn: bool = True
    """Run the learn process."""
    own_engine: bool = False
    """Load the model into the learn process too, if that runs on another host than the server."""
    policies: str | None = None
    """Folder of the versions, if hosts share it, or s3://… or similar; by default in the data folder."""
    rollout: str | None = None
    """pkg.module:function that uses the served model by itself, such as a simulated user."""
    train: bool = True
    """Train on judged turns; without it, turns are only judged and stored."""
    algo: str = "hinted"
    """hinted, hybrid, hybrid-sum, binary, opd, opd-topk, distill, or pkg.module:Class."""
    algo_options: dict[str, Any] = Field(default={})
    """Settings of this algorithm only, as NAME=VALUE,NAME=VALUE; also [learn.NAME] in the file."""
    loss: str | None = None
    """pkg.module:function instead of the algorithm's own loss."""
    teacher: Literal["base", "frozen", "average", "current"] = "base"
    """The model given the hint: base, frozen (--teacher-version), average (of the weights), or current."""
    teacher_version: int = Field(default=0, ge=0)
    """The frozen teacher's version."""
    batch_size: int = Field(default=0, ge=0)
    """Samples per step (0: the algorithm's default), plus half as many for each further user in it."""
    batch_max_age_s: float = Field(default=600, gt=0)
    """A step is taken with fewer samples once the oldest has waited this long."""
    min_signal: float = Field(default=0.1, ge=0, le=1)
    """A batch with a mean signal per sample below this waits for more samples."""
    max_staleness: int = Field(default=8, ge=0)
    """Maximum number of steps between the version that answered and the one that learns from it."""
    keep_versions: int = Field(default=8, ge=0)
    """Versions before the serving one whose weights are kept, besides milestones (0: all)."""
    replay: int = Field(default=-1, ge=-1)
    """Earlier accepted replies that a step replays, users taking turns (-1: the algorithm's default)."""
    sinks: str = "jsonl,prometheus"
    """Where the metrics of each step go: jsonl, prometheus, tensorboard, wandb, otel or your own."""
    daily_share: float = Field(default=0.5, ge=0, le=1)
    """Maximum share of one key in what a policy shared by several keys learns in a day (1: no limit)."""
    held_out_share: float = Field(default=0.06, ge=0, lt=1)
    """Share of judged turns held out from training, to check new versions."""
    env_algo: str = "rollout"
    """Environments: the algorithm for episodes; rollout, or pkg.module:Class."""
    env_algo_options: dict[str, Any] = Field(default={})
    """Environments: settings of this algorithm only; also [learn.NAME] in the file."""
    env_batch_size: int = Field(default=0, ge=0)
    """Environments: turns per training step (0: the algorithm's default)."""
    env_max_staleness: int = Field(default=4, ge=0)
    """Environments: maximum number of versions between the one that acted and the one that learns from it."""
    env_batch_max_age_s: float = Field(default=120, gt=0)
    """Environments: a step is taken with fewer turns once the oldest has waited this long."""


class LedgerConfig(_Section):
    ledger_url: str | None = None
    """sqlite:///PATH or postgresql://…; by default a SQLite file in the data folder."""
    redact: Literal["off", "mask", "drop"] = "mask"
    """Turns with a key, password, card or IBAN: off stores them as sent, mask masks it, drop drops them."""


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

    @property
    def passes_on(self) -> bool:
        """Whether another server answers everything, so that no model is loaded."""
        return self.serve.upstream is not None and not self.serve.take_over

    @property
    def people(self) -> Path:
        """The folder of keys.json and users.json."""
        return self.serve.people_folder.expanduser() if self.serve.people_folder else self.home


@dataclass(frozen=True, slots=True)
class Setting:
    """The source of a flag and its help."""

    annotation: Any
    default: Any
    description: str


def fields() -> Iterator[tuple[str | None, str, Setting]]:
    """Every setting as (section, name, setting); the section is None at the root."""
    for name, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, _Section)):
            yield from ((name, inner, setting) for inner, setting in settings_of(kind))
        else:
            yield None, name, Setting(field.annotation, field.default, field.description or "")


def settings_of(kind: Any) -> Iterator[tuple[str, Setting]]:
    """Of a section, or of any dataclass whose fields are settings."""
    if issubclass(kind, _Section):
        for name, field in kind.model_fields.items():
            yield name, Setting(field.annotation, field.default, field.description or "")
        return
    annotations, texts, defaults = get_type_hints(kind), _docstrings(kind), kind()
    for each in dataclass_fields(kind):
        yield (
            each.name,
            Setting(annotations[each.name], getattr(defaults, each.name), texts.get(each.name, "")),
        )


def _docstrings(kind: type) -> dict[str, str]:
    """The text under each field of a dataclass, those that it inherits too."""
    bodies: list[Any] = [ast.parse(inspect.getsource(k)).body for k in kind.__mro__ if is_dataclass(k)]
    return {
        ast.unparse(field.target): inspect.cleandoc(ast.literal_eval(text.value))
        for body in reversed(bodies)
        for field, text in pairwise(body[0].body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def load_config(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Config:
    """The resolved settings. ``flags`` maps setting names to values; None means not given."""
    environment = os.environ if environment is None else environment
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    variables = _from_environment(environment)
    home = given.get("home") or variables.get("home") or Config.model_fields["home"].default
    home = Path(home).expanduser()
    tree = _read_file(file or home / "config.toml", required=file is not None)
    _take_own_tables(tree, variables, given)
    stated = variables | given
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
        raise ValueError(_problem(error.errors()[0])) from None


#: Pydantic's words for what a value must be, and ours for the kinds that it names by those of programmers.
_SHOULD_BE = "Input should be "
_WANTED = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "a text",
           "model": "a table of settings", "dataclass": "a table of settings"}  # fmt: skip


def _problem(error: Any) -> str:
    """What is wrong with a setting, and what was probably meant."""
    name, problem = ".".join(map(str, error["loc"])), error["msg"].removeprefix("Value error, ")
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = {section: section for section, _, _ in fields() if section}
        known |= {name: f"{section}.{name}" if section else name for section, name, _ in fields()}
        known |= {
            name: f"{section}.{owner}.{name}"
            for section in MOVED
            for name, (owner, *_) in MOVED[section].items()
        }
        last = name.rpartition(".")[2]
        meant = known.get(last) or known.get((get_close_matches(last, known, n=1) or [""])[0])
        return f"unknown setting {name}" + (f"; did you mean {meant!r}?" if meant else "")
    choices = re.findall("'([^']+)'", error.get("ctx", {}).get("expected", ""))
    wanted = _WANTED.get(error["type"].partition("_")[0]) or problem.removeprefix(_SHOULD_BE)
    if problem.startswith(_SHOULD_BE):
        problem = f"is {error['input']!r}; it must be {wanted}"
        return f"setting {name} {problem}{did_you_mean(str(error['input']), choices)}"
    return f"setting {name}: {problem}"


def _take_own_tables(tree: dict[str, Any], variables: dict[str, Any], flags: dict[str, Any]) -> None:
    """``[engine.NAME]`` holds that engine's own settings; it is used only if that engine is chosen."""
    own = {section: _pop_own_tables(tree, section) for section in MOVED}
    old = {section: _take_old(section, tree[section], variables, flags) for section in MOVED}
    for section, chooser, options in _OWN:
        table = tree[section]
        if not isinstance(table, dict) or not isinstance(given := table.get(options, {}), dict):
            continue  # the check names it
        chosen = flags.get(chooser) or variables.get(chooser) or table.get(chooser) or _default(chooser)
        in_file, in_variables, in_flags = (options_of(section, chosen, each) for each in old[section])
        check_moved(section, chooser, chosen, old[section][0], old[section][2])
        table[options] = {
            **in_file, **own[section].get(chosen, {}), **given,
            **in_variables, **_read_options(options, variables.pop(options, {})),
            **in_flags, **_read_options(options, flags.pop(options, {})),
        }  # fmt: skip


def _take_old(section: str, *sources: Any) -> list[dict[str, Any]]:
    """Former settings of the whole section, in each source."""
    return [take_moved(section, source) for source in sources]


def _pop_own_tables(tree: dict[str, Any], section: str) -> dict[str, Any]:
    table = tree.setdefault(section, {})
    if not isinstance(table, dict):
        return {}
    known = {name for of, name, _ in fields() if of == section}
    return {name: table.pop(name) for name in list(table) if name not in known and _is_table(table[name])}


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _default(name: str) -> Any:
    return next(setting.default for _, known, setting in fields() if known == name)


def _read_options(name: str, text: str | dict[str, Any]) -> dict[str, Any]:
    """``a=1,b=x``, or a JSON object if a value contains a comma."""
    if isinstance(text, dict):
        return text
    if text.startswith("{"):
        found: dict[str, Any] = json.loads(text)
        return found
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if bad := [key for key, equals, _ in pairs if not equals]:
        raise ValueError(f"setting {name}: {bad[0]!r} has no value; write NAME=VALUE,NAME=VALUE")
    return {key.strip(): value.strip() for key, _, value in pairs}


def to_environment(config: Config) -> dict[str, str]:
    """Variables that give a child process the same settings."""
    tree = config.model_dump()
    stated = {name: (tree if section is None else tree[section])[name] for section, name, _ in fields()}
    texts = {
        name: json.dumps(v) if isinstance(v, dict) else str(v) for name, v in stated.items() if v is not None
    }
    return {_PREFIX + name.upper(): text for name, text in texts.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    names = {name for _, name, _ in fields()}
    stated: dict[str, Any] = {**understood(environment)}
    for variable, name in _ALIASES.items():
        if environment.get(variable):
            stated[name] = environment[variable]
    for name in names | {*MOVED_NAMES}:
        if value := environment.get(_PREFIX + name.upper()):
            stated[name] = value
    _check_variables(environment, [_PREFIX + name.upper() for name in (*names, *MOVED_NAMES)])
    return stated


def _check_variables(environment: Mapping[str, str], known: list[str]) -> None:
    """A variable that is almost a setting's is an error; others may belong to custom parts."""
    for variable in environment:
        if variable.startswith(_PREFIX) and variable not in known and not _is_no_setting(variable):
            name = variable.removeprefix(_PREFIX)
            close = get_close_matches(name, [one.removeprefix(_PREFIX) for one in known], n=1, cutoff=0.75)
            if close:
                raise ValueError(f"unknown variable {variable}; did you mean {_PREFIX}{close[0]}?")


def _is_no_setting(variable: str) -> bool:
    return variable.endswith("_API_KEY") or variable == f"{_PREFIX}CACHE"


def _read_file(path: Path, *, required: bool) -> dict[str, Any]:
    if not path.exists():
        if required:
            raise ValueError(f"there is no config file {path}")
        return {}
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
