"""The port that the server listens on."""

from __future__ import annotations

import asyncio
import socket

from openclaw_rl.serve.listen import bind


async def test_no_token_waits_until_the_client_acknowledged_the_one_before() -> None:
    """With Nagle's algorithm a stream's small packets would: 40 ms on many clients."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = bind("127.0.0.1", 0)
    async with await asyncio.start_server(connected, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert await accepted
        writer.close()
