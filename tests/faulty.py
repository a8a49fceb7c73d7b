"""A line to a real server that can be cut, go silent, or answer for it with an error."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class FaultyLine:
    """Listens on loopback and passes everything on, until told otherwise."""

    def __init__(self, server: Path | tuple[str, int]) -> None:
        self._server, self._loop = server, asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._status, self._is_cut, self._times = 0, False, 0
        self.num_refused = 0
        self._passing = asyncio.Event()
        self._passing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener: asyncio.Server = self._run(self._listen())
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._take, "127.0.0.1", 0)

    def cut(self) -> None:
        """Every connection is reset, and every new one."""
        self._run(self._change(is_cut=True))

    def silence(self) -> None:
        """Nothing gets through any more, and nobody is told."""
        self._loop.call_soon_threadsafe(self._passing.clear)

    def answer(self, status: int, times: int = 1_000_000) -> None:
        """To the next requests, without asking the server."""
        self._run(self._change(status=status, times=times))

    def mend(self) -> None:
        self._run(self._change())

    async def _change(self, is_cut: bool = False, status: int = 0, times: int = 0) -> None:
        self._is_cut, self._status, self._times = is_cut, status, times
        self._passing.set()
        for writer in list(self._open):
            writer.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                if self._is_cut:
                    return
                if self._times > 0:
                    self._times -= 1
                    return await self._refuse(reader, writer)
                await self._pass_on(reader, writer)
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        _, _, rest = head.partition("content-length:")
        await reader.readexactly(int(rest.partition("\r\n")[0] or 0))
        self.num_refused += 1
        body = json.dumps({"error": {"message": "not now"}, "detail": "not now"}).encode()
        lines = [f"HTTP/1.1 {self._status} No", "content-type: application/json", "connection: close"]
        writer.write("\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(self._server, Path):
            there, back = await asyncio.open_unix_connection(str(self._server))
        else:
            there, back = await asyncio.open_connection(*self._server)
        self._open.add(back)
        try:
            pumps = [
                asyncio.create_task(each) for each in (self._pump(reader, back), self._pump(there, writer))
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._open.discard(back)
            back.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._passing.wait()
            writer.write(data)
            await writer.drain()

    async def _end(self) -> None:
        self._listener.close()
        ending = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.wait(ending, timeout=5) if ending else None

    def close(self) -> None:
        self.cut()
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def faulty_line(server: Path | tuple[str, int]) -> Iterator[FaultyLine]:
    line = FaultyLine(server)
    try:
        yield line
    finally:
        line.close()
