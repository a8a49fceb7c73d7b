"""The examples in ``deploy/`` are well-formed, name settings that exist, and belong together."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from openclaw_rl.config import fields
from openclaw_rl.known_names import API_KEYS
from openclaw_rl.testing import command

DEPLOY = Path(__file__).parents[1] / "deploy"
#: Read by the program, and no settings.
OTHERS = {*API_KEYS, "OPENCLAW_RL_CACHE", "HOST", "PORT"}
KNOWN = {f"OPENCLAW_RL_{name.upper()}" for _, name, _ in fields()} | OTHERS
#: What each kind must have, by its API version: the fields that Kubernetes' schema requires.
KINDS: dict[tuple[str, str], list[str]] = {
    ("v1", "ConfigMap"): ["data"],
    ("v1", "Service"): ["spec.selector", "spec.ports"],
    ("apps/v1", "Deployment"): ["spec.selector.matchLabels", "spec.template.spec.containers"],
    ("apps/v1", "StatefulSet"): [
        "spec.serviceName",
        "spec.selector.matchLabels",
        "spec.template.spec.containers",
    ],
}


def field(thing: Any, path: str) -> Any:
    for name in path.split("."):
        thing = thing[name]
    return thing


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


@pytest.mark.parametrize("name", ["compose.yaml", "compose.hosts.yaml"])
def test_compose(name: str) -> None:
    tree = yaml.safe_load((DEPLOY / name).read_text())
    volumes = set(tree["volumes"])
    for service in tree["services"].values():
        assert (
            "image" in service
            or (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        )
        assert {each.partition(":")[0] for each in service.get("volumes", ())} <= volumes
        assert set(service.get("depends_on", ())) <= set(tree["services"])
        named = [each for each in service.get("environment", ()) if each.startswith("OPENCLAW_RL")]
        assert set(named) <= KNOWN
        assert service.get("command", ["serve"])[0] in ("serve", "learn")


def test_kubernetes() -> None:
    for thing in kubernetes():
        for path in ("metadata.name", *KINDS[thing["apiVersion"], thing["kind"]]):
            assert field(thing, path)
    [settings] = [thing["data"] for thing in kubernetes() if thing["kind"] == "ConfigMap"]
    assert set(settings) <= KNOWN
    assert all(isinstance(value, str) for value in settings.values()), "numbers would be refused"


def test_what_runs_on_kubernetes_belongs_together() -> None:
    running = [thing for thing in kubernetes() if thing["kind"] in ("Deployment", "StatefulSet")]
    [service] = [thing for thing in kubernetes() if thing["kind"] == "Service"]
    labels = []
    for thing in running:
        template = thing["spec"]["template"]
        assert template["metadata"]["labels"] == thing["spec"]["selector"]["matchLabels"]
        labels.append(template["metadata"]["labels"])
        there = {each["name"] for each in template["spec"].get("volumes", ())}
        there |= {each["metadata"]["name"] for each in thing["spec"].get("volumeClaimTemplates", ())}
        for container in template["spec"]["containers"]:
            assert {each["name"] for each in container["volumeMounts"]} <= there
            assert {each["name"] for each in container["env"]} <= KNOWN
            assert container["args"][0] in ("serve", "learn")
            asked, most = container["resources"]["requests"], container["resources"]["limits"]
            assert set(asked) == {"cpu", "memory", "ephemeral-storage"}
            assert set(most) == {"memory", "ephemeral-storage"}, "a CPU limit would stall all streams at once"
    assert service["spec"]["selector"] in labels


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_reads_the_unit_without_complaint(tmp_path: Path) -> None:
    """With the command of this environment: the unit's own path is another machine's."""
    unit = tmp_path / "openclaw-rl.service"
    text = (DEPLOY / "openclaw-rl.service").read_text()
    assert "%h/.local/bin/openclaw-rl" in text
    unit.write_text(text.replace("%h/.local/bin/openclaw-rl", command()))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
