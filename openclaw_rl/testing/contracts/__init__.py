"""What every implementation of a protocol must do, as tests that run against any of them.

Subclass one in a test file and give it the fixtures it names::

    class TestMyEngine(EngineContract):
        @pytest.fixture
        async def engine(self): ...

What an implementation does not claim in its capabilities is not asked of it. Needs pytest and pytest-asyncio.
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
