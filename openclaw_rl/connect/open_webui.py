from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from openclaw_rl.connect.client import ROOMY, Edit, ServerAddress

#: Turns off its 28 tools, whose descriptions take 5k tokens.
_LEAN = 'DEFAULT_MODEL_METADATA=\'{"capabilities":{"builtin_tools":false}}\''


class OpenWebUI:
    """Usually runs in a container, where this machine has another host name."""

    title = "Open WebUI"

    def explain(self, server: ServerAddress) -> str:
        port = urlsplit(server.url).port or 80
        is_small = server.context_length < ROOMY
        return f"""\
docker run -d -p 3000:8080 --add-host=host.docker.internal:host-gateway \\
  -e OPENAI_API_BASE_URL=http://host.docker.internal:{port}/v1 -e OPENAI_API_KEY={server.key} \\
  {f"-e {_LEAN} " if is_small else ""}-e ENABLE_OLLAMA_API=false \\
  -v open-webui:/app/backend/data ghcr.io/open-webui/open-webui:main

The container reaches the server only if it listens on the bridge too: openclaw-rl serve --host 0.0.0.0
Without a container:
  {f"{_LEAN} " if is_small else ""}OPENAI_API_BASE_URL={server.base_url} OPENAI_API_KEY={server.key} \\
  ENABLE_OLLAMA_API=false open-webui serve
In a running one: Settings → Connections → OpenAI API → +, the same URL and key."""

    def edits(self, server: ServerAddress, home: Path) -> Sequence[Edit]:
        return ()
