"""An MCP server with two tools, for the tests."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")


@server.tool()
def triple(number: int) -> int:
    """Three times a number."""
    return 3 * number


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ValueError("it is broken")


if __name__ == "__main__":
    server.run("stdio")
