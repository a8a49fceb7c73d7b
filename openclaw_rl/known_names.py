"""Names of settings in similar launchers and in older versions.

They are accepted, or answered with our name. ``OPENCLAW_RL_…`` and flags override them. Each such variable is
reported at start, whether it is used or not.
"""

from __future__ import annotations

from collections.abc import Mapping
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
}
_GPUS = (
    "one process uses one GPU; for more, --engine vllm with --engine-options "
    "'flags=--tensor-parallel-size N', or a SkyRL server with --engine tinker --trainer tinker"
)
#: Variable that is not used -> what to do instead.
ANSWERED = {
    "NUM_GPUS": _GPUS,
    "ACTOR_GPUS": _GPUS,
    "ROLLOUT_GPUS": _GPUS,
    "PRM_GPUS": f"the judge is the served model; {_GPUS}",
    "TRAIN_GPUS": _GPUS,
    "RESUME_CKPT": "learning goes on from the version that serves; choose one: openclaw-rl policy promote N",
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
    "--w-rl": "rl_weight",
    "--w-opd": "opd_weight",
}
_HINTED = ("opd", "opd-topk", "hybrid", "hybrid-sum")
#: Former setting of all algorithms -> the algorithms of which it is now an option.
MOVED = {
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
#: Those of them that are switches.
MOVED_SWITCHES = ("retell", "reward_baseline")
#: Their option names, if different.
_OPTIONS = {"env_step_scale": "scale"}


def take_moved(given: Any) -> dict[str, Any]:
    """Remove and return the former settings of all algorithms."""
    return {name: given.pop(name) for name in MOVED if name in given} if isinstance(given, dict) else {}


def options_of(algorithm: str, moved: Mapping[str, Any]) -> dict[str, Any]:
    """Those that this algorithm has, as its options; for other algorithms they never had an effect."""
    return {_OPTIONS.get(name, name): value for name, value in moved.items() if algorithm in MOVED[name]}


def understood(environment: Mapping[str, str]) -> dict[str, str]:
    """Our setting names -> values; of two variables for one setting, the first in the table counts."""
    found: dict[str, str] = {}
    for variable, name in UNDERSTOOD.items():
        if environment.get(variable):
            found.setdefault(name, environment[variable])
    return found


def notes(environment: Mapping[str, str]) -> list[str]:
    """A line for each such variable that is set."""
    said = []
    for variable, name in UNDERSTOOD.items():
        if environment.get(variable):
            said.append(f"{variable} is read as --{name.replace('_', '-')} (OPENCLAW_RL_{name.upper()})")
    for name, algorithms in MOVED.items():
        if (variable := f"OPENCLAW_RL_{name.upper()}") in environment:
            option = _OPTIONS.get(name, name)
            said.append(
                f"{variable} is an option of {', '.join(algorithms)} now: {option} under "
                f"[learn.{algorithms[0]}] in config.toml"
            )
    said += [
        f"{variable} is not used: {ANSWERED[variable]}" for variable in ANSWERED if variable in environment
    ]
    return said
