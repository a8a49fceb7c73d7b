"""``scripts/debian-image`` leaves nothing, wherever it fails; its commands are stand-ins here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from openclaw_rl.testing import wait_until

SCRIPTS = Path(__file__).parents[1] / "scripts"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
COMMANDS = {
    "id": "echo 0",
    "debootstrap": """
        for each; do case $each in /*) tree=$each;; esac; done
        mkdir -p "$tree"/{etc/ssl/certs,usr/local/bin,usr/lib}
        [ "$FAILS" != debootstrap ]""",
    "buildah": """
        case " $* " in
        *" from "*) echo a-container;;
        *" bud "*) [ "$FAILS" != buildah ];;
        *" run "*) sleep 600 & echo $! >"$HERE/pid"; echo "dashboard"; wait;;
        esac""",
    "curl": "exit 7",
}


def stand_ins(folder: Path) -> None:
    folder.mkdir()
    for name, text in COMMANDS.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / name).chmod(0o755)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(
    not (shutil.which("ss") and shutil.which("pgrep") and CERTIFICATES.exists()),
    reason="needs ss, pgrep and ca-certificates",
)
@pytest.mark.parametrize("fails", ["debootstrap", "buildah", "curl"])
def test_a_failure_leaves_no_files_and_no_processes(tmp_path: Path, fails: str) -> None:
    stand_ins(tmp_path / "bin")
    (tmp_path / "scripts").mkdir()
    for name in ("debian-image", "system-packages"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts" / name)
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "Dockerfile").write_text("FROM python\n")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        [tmp_path / "scripts" / "debian-image"],
        env={**os.environ, "PATH": path, "FAILS": fails, "HERE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    assert list((tmp_path / "build").iterdir()) == []
    if fails == "curl":
        pid = int((tmp_path / "pid").read_text())
        wait_until(lambda: not is_running(pid) or None, "what ran in the container has ended")
