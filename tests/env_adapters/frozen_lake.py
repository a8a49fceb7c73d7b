"""Gymnasium's FrozenLake as an environment of verifiers, as its authors would write it."""

from __future__ import annotations

from typing import Any

import gymnasium
from verifiers.envs.experimental.gym_env import GymEnv

MOVES = ("left", "down", "right", "up")


class Lake:
    def __init__(self) -> None:
        self._env = gymnasium.make("FrozenLake-v1", is_slippery=False)

    def reset(self, seed: int) -> Any:
        return self._env.reset(seed=seed)

    def step(self, action: int) -> Any:
        return self._env.step(action)


def load_environment(num_episodes: int = 10) -> GymEnv:
    return GymEnv(
        Lake,
        action_parser=lambda text: MOVES.index(text.strip()),
        obs_to_text=lambda place: f"You are in field {place} of 0 to 15; the goal is field 15.",
        num_train_episodes=num_episodes,
        num_eval_episodes=4,
    )
