"""Contract suites: tests that every implementation of a protocol must pass.

Subclass one in a test file and define the fixtures it names::

    class TestMyEngine(EngineContract):
        @pytest.fixture
        async def engine(self): ...

Only the capabilities that an implementation claims are tested. Needs pytest and pytest-asyncio.
"""

from openclaw_rl.testing.contracts.algorithm import AlgorithmContract
from openclaw_rl.testing.contracts.engine import EngineContract
from openclaw_rl.testing.contracts.environment import EnvironmentContract
from openclaw_rl.testing.contracts.judge import JudgeContract
from openclaw_rl.testing.contracts.ledger import LedgerContract
from openclaw_rl.testing.contracts.trainer import TrainerContract

__all__ = [
    "AlgorithmContract",
    "EngineContract",
    "EnvironmentContract",
    "JudgeContract",
    "LedgerContract",
    "TrainerContract",
]
