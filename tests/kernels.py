"""``python -m tests.kernels``: the bounds of all kernels' log-probs, and the tests that go through the real
engine with each kernel in turn.

The kernel is set by its environment variable, which the fixtures pass on to engines and servers. A kernel
that this machine cannot run is named with the reason and left out. Arguments go to pytest.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from openclaw_rl.engine.kernels import KERNELS
from openclaw_rl.engine.levels import levels_here
from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model

TESTS = (
    *(f"tests/engine/test_{name}.py" for name in ("exactness", "scheduler", "switching", "grammar")),
    "tests/judge/test_judges.py::test_the_embedded_judge_on_a_part_of_the_test_half",
    "tests/e2e/test_python_client.py::test_a_reply_whole_and_streamed",
    "tests/e2e/test_python_client.py::test_a_tool_is_called",
    "tests/e2e/test_python_client.py::test_logprobs_are_those_in_the_ledger",
)
#: Low-precision products round a row by how many run with it, so the same seed may draw another token.
ONLY_FLOAT = "tests/engine/test_scheduler.py::test_a_seed_gives_the_same_reply_in_any_company"


def problem(kernel: str, model: Path) -> str | None:
    """Why this machine cannot run the kernel; None if it can."""
    try:
        engine = LocalEngine(model, LocalEngineOptions(device="cpu", kernel=kernel))
    except (RuntimeError, AttributeError) as error:  # the latter: torch was built without the operator
        return str(error).partition("\n")[0]
    asyncio.run(engine.close())
    return None


def main(arguments: list[str]) -> int:
    model = resolve_model(DEFAULT_MODEL, default_cache_dir())
    bounds = [sys.executable, "-m", "pytest", "-m", "kernels", "tests/engine/test_kernels.py", *arguments]
    failed = ["the bounds of log-probs"] if subprocess.run(bounds).returncode else []
    lower = [f"native@{level.name}" for level in levels_here()[1:]]
    for kernel in (*KERNELS, *lower):
        if reason := problem(kernel, model):
            print(f"==> {kernel}: not on this machine ({reason})", flush=True)
            continue
        print(f"==> {kernel}", flush=True)
        environment = {**os.environ, "OPENCLAW_RL_KERNEL": kernel}
        left_out = [] if kernel == "float" else ["--deselect", ONLY_FLOAT]
        command = [sys.executable, "-m", "pytest", *TESTS, *left_out, *arguments]
        if subprocess.run(command, env=environment).returncode:
            failed.append(kernel)
    if failed:
        print(f"==> failed with: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
