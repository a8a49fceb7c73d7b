"""Adapters by version: all of them on disk, a bounded number in memory.

When the cache is full, the least recently used adapter that no request is using is evicted. An evicted
adapter is read again when it is needed, in threads that do nothing else, so that no other request waits for
it, however slow the disk is; requests that need it at the same time share one reading.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from openclaw_rl.engine.lora import Adapter

#: Adapters read at the same time.
_READERS = 4


class AdapterCache:
    """``read`` runs in a worker thread; ``on_evict`` is called with every adapter removed from memory."""

    def __init__(
        self, most: int, read: Callable[[Path], Adapter], on_evict: Callable[[Adapter], None]
    ) -> None:
        self._most, self._read, self._on_evict = max(1, most), read, on_evict
        self._paths: dict[int, Path] = {}
        self._loaded: OrderedDict[int, Adapter] = OrderedDict()
        self._in_use: Counter[int] = Counter()
        self._reading: dict[Path, asyncio.Task[Adapter]] = {}
        # Not asyncio's own threads: every request needs one of those for the ledger.
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="adapters")

    def __contains__(self, version: int) -> bool:
        return version in self._paths

    @property
    def versions(self) -> list[int]:
        return list(self._paths)

    @property
    def num_loaded(self) -> int:
        return len(self._loaded)

    def loaded(self, version: int) -> Adapter | None:
        """The adapter if it is in memory, else None."""
        return self._loaded.get(version)

    async def put(self, version: int, path: Path) -> None:
        """Register a version. Its adapter is read now if there is room, else on first use."""
        adapter = await self._read_in_thread(path) if self._has_room() else None
        self.drop(version)
        self._paths[version] = path
        if adapter is not None:
            self._place(version, adapter)

    @asynccontextmanager
    async def using(self, version: int) -> AsyncIterator[Adapter | None]:
        """The adapter, not evicted while the context is open; None for a version that has none."""
        if version not in self._paths:
            yield None
            return
        self._in_use[version] += 1
        try:
            if version not in self._loaded:
                path = self._paths[version]
                adapter = await self._read_once(path)
                if version not in self._loaded and self._paths.get(version) == path:
                    self._place(version, adapter)
            else:
                adapter = self._loaded[version]
                self._loaded.move_to_end(version)
            yield self._loaded.get(version, adapter)
        finally:
            self._in_use[version] -= 1
            self._evict()

    async def _read_once(self, path: Path) -> Adapter:
        if path not in self._reading:
            self._reading[path] = asyncio.create_task(self._read_in_thread(path))
            self._reading[path].add_done_callback(lambda _: self._reading.pop(path))
        # Who asked first may leave while others wait.
        return await asyncio.shield(self._reading[path])

    async def _read_in_thread(self, path: Path) -> Adapter:
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, path)

    def drop(self, version: int) -> None:
        self._paths.pop(version, None)
        if (adapter := self._loaded.pop(version, None)) is not None:
            self._on_evict(adapter)

    def _has_room(self) -> bool:
        return len(self._loaded) < self._most

    def _place(self, version: int, adapter: Adapter) -> None:
        self._loaded[version] = adapter
        self._evict()

    def _evict(self) -> None:
        idle = [version for version in self._loaded if not self._in_use[version]]
        for version in idle[: max(0, len(self._loaded) - self._most)]:
            self._on_evict(self._loaded.pop(version))
