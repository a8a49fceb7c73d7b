"""SkyRL's server of the Tinker protocol without ``uv``: loopback only, on this interpreter, also Python 3.11.

python skyrl_server.py PORT --base-model … (as ``skyrl.tinker.api`` takes it)
"""

# ruff: noqa: E402
import argparse
import runpy
import sys
import typing
from collections.abc import Callable
from typing import Any

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # what pydantic wants before Python 3.12

import uvicorn


def serve(wrapped: Callable[[Any], Any] = lambda app: app) -> None:
    """``wrapped`` puts another application in front of SkyRL's."""
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

    def command(_parent: list[str], config: EngineConfig) -> list[str]:
        return [sys.executable, __file__, "engine", *config_to_argv(config)]

    api._build_uv_run_cmd_engine = command
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    add_model(parser, EngineConfig)
    stated = vars(parser.parse_args())
    port = stated.pop("port")
    api.app.state.engine_config = EngineConfig.model_validate(stated)
    uvicorn.run(wrapped(api.app), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        sys.argv = ["engine", *sys.argv[2:]]
        runpy.run_module("skyrl.tinker.engine", run_name="__main__")
    else:
        serve()
