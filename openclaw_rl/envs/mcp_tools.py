"""Tools of MCP servers, through the official SDK (``pip install 'openclaw-rl[mcp]'``).

Servers are configured as in MCP clients, by a ``command`` with ``args`` and ``env``, or by a ``url``. Each
episode starts its own servers, so that no state carries over. They run outside the sandbox.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from openclaw_rl.types import Json, Tool

_CALL_SECONDS = 60.0


class McpTools:
    """The tools of several servers. One task holds all connections: it must both open and close them."""

    def __init__(self, servers: Json) -> None:
        self._servers = servers
        self._clients: dict[str, Any] = {}
        self._over = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None
        self.tools: list[Tool] = []

    async def open(self) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold(ready))
        try:
            await ready
        except BaseException:
            await self.close()
            raise

    async def _hold(self, ready: asyncio.Future[None]) -> None:
        async with AsyncExitStack() as stack:
            try:
                for name, server in self._servers.items():
                    await self._connect(stack, name, server)
            except Exception as error:
                ready.set_exception(RuntimeError(f"MCP server {name}: {type(error).__name__}: {error}"))
                return
            ready.set_result(None)
            await self._over.wait()

    async def _connect(self, stack: AsyncExitStack, name: str, server: Json) -> None:
        client = await stack.enter_async_context(_client(name, server))
        for each in (await client.list_tools()).tools:
            if each.name in self._clients:
                raise ValueError(f"there is a tool {each.name!r} of another server already")
            self._clients[each.name] = client
            about, schema = each.description or "", each.input_schema
            self.tools.append({"name": each.name, "description": about, "parameters": schema})

    async def call(self, name: str, arguments: Json) -> tuple[str, bool]:
        """The tool's result, and whether the call succeeded."""
        async with asyncio.timeout(_CALL_SECONDS):
            result = await self._clients[name].call_tool(name, arguments)
        text = "\n".join(getattr(part, "text", f"[{part.type}]") for part in result.content)
        return (f"error: {text}", False) if result.is_error else (text, True)

    async def close(self) -> None:
        self._over.set()
        if self._holder is not None:
            await asyncio.gather(self._holder, return_exceptions=True)
            self._holder = None


def _client(name: str, server: Json) -> Any:
    try:
        from mcp.client.client import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client
    except ImportError:
        raise ValueError("MCP servers need the official SDK: pip install 'openclaw-rl[mcp]'") from None
    if "url" in server:
        return Client(server["url"])
    if "command" not in server:
        raise ValueError(f"the MCP server {name!r} has neither a command nor a url")
    command = StdioServerParameters(
        command=server["command"], args=server.get("args", []), env=server.get("env"), cwd=server.get("cwd")
    )
    return Client(stdio_client(command))
