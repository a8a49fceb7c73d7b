"""Names of settings in similar launchers and in older versions.

They are accepted, or answered with our name. ``OPENCLAW_RL_…`` and flags override them. Each such variable is
reported at start, whether it is used or not.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

#: Variable -> the setting that it is an alias of.
UNDERSTOOD = {
    "HF_CKPT": "model",
    "MODEL_PATH": "model",
    "PRM_MODEL_PATH": "judge_model",
    "JUDGE_MODEL_PATH": "judge_model",
    "SAVE_CKPT": "policies",
    "CKPT_SAVE_DIR": "policies",
    "SERVED_MODEL_NAME": "served_model_name",
    "PRM_M": "majority_vote_n",
    "MAJORITY_VOTE_N": "majority_vote_n",
    "OPENCLAW_HOST": "host",
    "OPENCLAW_PORT": "port",
    "PROXY_HOST": "host",
    "PROXY_PORT": "port",
    "OPENCLAW_COMBINE_W_RL": "rl_weight",
    "OPENCLAW_COMBINE_W_OPD": "opd_weight",
}
#: Many machines name their web proxy like this, so these count only beside another of these launchers' names.
_AMBIGUOUS = ("PROXY_HOST", "PROXY_PORT")
_GPUS = (
    "one process uses one GPU; for more, --engine vllm with --engine-options "
    "'flags=--tensor-parallel-size N', or a SkyRL server with --engine tinker --trainer tinker"
)
_RESUME = "learning goes on from the version that serves; choose one: openclaw-rl policy promote N"
_RECORD = "every turn is recorded; write them to a file: openclaw-rl data export"
#: Variable that is not used -> what to do instead.
ANSWERED = {
    "NUM_GPUS": _GPUS,
    "ACTOR_GPUS": _GPUS,
    "ROLLOUT_GPUS": _GPUS,
    "PRM_GPUS": f"the judge is the served model; {_GPUS}",
    "TRAIN_GPUS": _GPUS,
    "TRAIN_TP": _GPUS,
    "ROLLOUT_NUM_GPUS_PER_ENGINE": _GPUS,
    "PRM_NUM_GPUS_PER_ENGINE": f"the judge is the served model; {_GPUS}",
    "REF_LOAD": "the reference is the base model: --model",
    "RESUME_CKPT": _RESUME,
    "RESUME_FROM_CKPT": _RESUME,
    "OPENCLAW_RECORD_ENABLED": _RECORD,
    "OPENCLAW_RECORD_FILE": _RECORD,
    "DATA_PATH": "bring conversations in first: openclaw-rl data import FILE",
}
#: Variables for the API key; see ``serve/auth.py``.
API_KEYS = ("OPENCLAW_RL_API_KEY", "SGLANG_API_KEY")
#: ``run --method`` names of our algorithms.
METHODS = {"rl": "binary", "opd": "opd", "combine": "hybrid-sum", "topk": "opd-topk"}
#: Flag of ``run`` -> our name of the setting.
FLAGS = {
    "--model-name": "model",
    "--prm-m": "majority_vote_n",
    "--prm-model": "judge_model",
    "--teacher-model-name": "judge_model",
    "--proxy-host": "host",
    "--proxy-port": "port",
    "--w-rl": "rl_weight",
    "--w-opd": "opd_weight",
}
_HINTED = ("opd", "opd-topk", "hybrid", "hybrid-sum")
_LOCAL_ENGINE = ("dtype", "kernel", "num_threads", "chunk_tokens", "max_step_s", "cache_tokens")
_LOCAL_TRAINER = ("micro_batch_tokens", "train_dtype", "train_base", "train_threads")
_ALGORITHMS = {
    "hint_choice": (*_HINTED, "distill"),
    "top_k": ("opd-topk", "hybrid", "hybrid-sum"),
    "teacher_k": ("hybrid",),
    "gap_clip": _HINTED,
    "rl_weight": ("binary", "hybrid", "hybrid-sum"),
    "opd_weight": _HINTED,
    "accepted_weight": ("hybrid",),
    "retell": ("hybrid",),
    "reward_baseline": ("binary",),
    "importance_cap": ("binary", "opd", "hybrid", "hybrid-sum", "rollout"),
    "outcome_weight": ("rollout",),
    "process_weight": ("rollout",),
    "env_step_scale": ("rollout",),
}
#: Section -> former setting of the whole section -> the implementations of which it is now an option.
MOVED: dict[str, dict[str, tuple[str, ...]]] = {
    "engine": dict.fromkeys(_LOCAL_ENGINE, ("local",)),
    "train": dict.fromkeys(_LOCAL_TRAINER, ("local",)),
    "learn": _ALGORITHMS,
}
MOVED_NAMES = tuple(name for names in MOVED.values() for name in names)
#: Those of them that are switches.
MOVED_SWITCHES = ("retell", "reward_baseline")
#: Their option names, if different.
_OPTIONS = {"env_step_scale": "scale"}


def take_moved(section: str, given: Any) -> dict[str, Any]:
    """Remove and return the former settings of the section."""
    if not isinstance(given, dict):
        return {}
    return {name: given.pop(name) for name in MOVED[section] if name in given}


def options_of(section: str, implementation: str, moved: Mapping[str, Any]) -> dict[str, Any]:
    """Those that this implementation has, as its options."""
    owners = MOVED[section]
    return {
        _OPTIONS.get(name, name): value for name, value in moved.items() if implementation in owners[name]
    }


def understood(environment: Mapping[str, str]) -> dict[str, str]:
    """Our setting names -> values; of two variables for one setting, the first in the table counts."""
    found: dict[str, str] = {}
    for variable in _meant(environment):
        found.setdefault(UNDERSTOOD[variable], environment[variable])
    return found


def _meant(environment: Mapping[str, str]) -> list[str]:
    """The aliases that are set, and for us."""
    stated = [variable for variable in UNDERSTOOD if environment.get(variable)]
    sure = [variable for variable in stated if variable not in _AMBIGUOUS]
    return stated if sure or environment.keys() & ANSWERED.keys() else sure


def check_moved(section: str, chooser: str, chosen: str, file: Container[str], flags: Container[str]) -> None:
    """ValueError for a former setting of the section that the chosen engine or trainer does not have.

    Algorithms ignore those of other algorithms, as they always did, and variables may be meant for another
    start: they only get a note.
    """
    for name, owners in MOVED[section].items() if section != "learn" else ():
        if chosen in owners:
            continue
        what = f"is a setting of --{chooser} {owners[0]}, not of {chosen}"
        if name in flags:
            raise ValueError(f"--{name.replace('_', '-')} {what}; leave it out")
        if name in file:
            raise ValueError(f"{name} under [{section}] {what}; move it to [{section}.{owners[0]}]")


def notes(environment: Mapping[str, str]) -> list[str]:
    """A line for each such variable that is set."""
    names = [(variable, UNDERSTOOD[variable]) for variable in _meant(environment)]
    said = [
        f"{variable} is read as --{name.replace('_', '-')} (OPENCLAW_RL_{name.upper()})"
        for variable, name in names
    ]
    for section, moved in MOVED.items():
        for name, owners in moved.items():
            if (variable := f"OPENCLAW_RL_{name.upper()}") in environment:
                said.append(
                    f"{variable} is an option of {', '.join(owners)} now: {_OPTIONS.get(name, name)} under "
                    f"[{section}.{owners[0]}] in config.toml"
                )
    said += [
        f"{variable} is not used: {ANSWERED[variable]}" for variable in ANSWERED if variable in environment
    ]
    return said
