"""``openclaw-rl policy …``: look at versions, choose one, take one elsewhere.

All of them work on the data folder itself, with or without a running server; a server follows the ledger
and switches within a moment.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.capture.inspect import view_policies, view_policy
from openclaw_rl.capture.lineage import REJECTED, RETIRED, Lineage
from openclaw_rl.config import Config
from openclaw_rl.loop import open_journal, open_ledger, open_store
from openclaw_rl.models import default_cache_dir, resolve_model
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import BASE_VERSION, Json, Policy

ACTIONS = ("list", "show", "diff", "promote", "rollback", "export", "prune")


def run(options: argparse.Namespace, config: Config) -> int:
    ledger, journal = open_ledger(config), open_journal(config)
    try:
        commands = _Commands(config, Lineage(ledger, journal), open_store(config))
        print(getattr(commands, options.action)(options))
        return 0
    finally:
        journal.close()
        ledger.close()


class _Commands:
    def __init__(self, config: Config, lineage: Lineage, store: PolicyStore) -> None:
        self.config, self.lineage, self.store = config, lineage, store

    def list(self, options: argparse.Namespace) -> str:
        view = view_policies(self.lineage, self.lineage.serving())
        if options.json:
            return json.dumps(view, indent=2)
        rows = [_row(entry) for entry in view["data"]]
        head = ("version", "parent", "status", "samples", "made", "loss", "checks")
        return _table([head, *rows])

    def show(self, options: argparse.Namespace) -> str:
        policy = self._policy(_one(options))
        manifest = self.store.manifest(policy.version) if self.store.exists(policy.version) else None
        return json.dumps({**view_policy(policy), "manifest": manifest}, indent=2)

    def diff(self, options: argparse.Namespace) -> str:
        from openclaw_rl.train.export import difference

        if len(options.versions) != 2:
            raise ValueError("policy diff needs two versions, such as: policy diff 1 2")
        first, second = (self._folder(version) for version in options.versions)
        changes = list(difference(first, second))
        if options.json:
            return json.dumps([{"module": m, "norm": n, "share": s} for m, n, s in changes], indent=2)
        total = sum(norm**2 for _, norm, _ in changes) ** 0.5
        strongest = sorted(changes, key=lambda change: -change[1])[:10]
        rows: Sequence[tuple[str, ...]] = [(module, f"{norm:.4f}") for module, norm, _ in strongest]
        return f"norm of the whole change: {total:.4f}; the ten modules that changed most:\n" + _table(rows)

    def promote(self, options: argparse.Namespace) -> str:
        version = _one(options)
        self._folder(version)
        self.lineage.promote(version, "promoted by hand")
        return f"version {version} serves new requests from now on"

    def rollback(self, options: argparse.Namespace) -> str:
        serving = self.lineage.serving()
        if serving == BASE_VERSION:
            raise ValueError("the base is being served; there is no version before it")
        parent = self._policy(serving).parent or BASE_VERSION
        version = options.versions[0] if options.versions else parent
        self._folder(version)
        self.lineage.promote(version, f"rolled back by hand from version {serving}")
        return f"rolled back from version {serving} to {version}"

    def export(self, options: argparse.Namespace) -> str:
        from openclaw_rl.train import export

        version = _one(options)
        folder = self._folder(version)
        if folder is None:
            raise ValueError("version 0 is the base model itself; there is nothing to export")
        if options.to is None:
            raise ValueError("policy export needs a target: --to FOLDER (or FILE.gguf)")
        target = Path(options.to)
        if options.format == "peft":
            export.export_peft(folder, target)
        else:
            base = resolve_model(self.config.engine.model, default_cache_dir())
            if options.format == "gguf":
                from openclaw_rl.train.gguf import export_gguf

                export_gguf(folder, base, target)
            else:
                export.export_merged(folder, base, target)
        return f"version {version} exported to {target}"

    def prune(self, options: argparse.Namespace) -> str:
        """Old versions' files go; what they were stays in the ledger."""
        serving = self.lineage.serving()
        line = {serving}
        while (policy := self.lineage.policy(min(line))) is not None and policy.parent:
            line.add(policy.parent)
        keep = set(sorted(line, reverse=True)[: options.keep])
        gone = [
            policy.version
            for policy in self.lineage.list_policies()
            if policy.status in (RETIRED, REJECTED)
            and policy.version not in keep
            and self.store.path(policy.version).exists()
        ]
        for version in gone:
            self.store.forget(version, only_state=False)
        return f"removed the files of {len(gone)} versions; kept {', '.join(map(str, sorted(keep)))}"

    def _policy(self, version: int) -> Policy:
        policy = self.lineage.policy(version)
        if policy is None:
            raise ValueError(
                f"there is no policy version {version}; 'openclaw-rl policy list' shows those there are"
            )
        return policy

    def _folder(self, version: int) -> Path | None:
        """None for the base."""
        if version == BASE_VERSION:
            return None
        self._policy(version)
        if not self.store.exists(version):
            raise ValueError(f"the files of version {version} are gone (pruned, or never finished)")
        return self.store.path(version)


def _one(options: argparse.Namespace) -> int:
    if len(options.versions) != 1:
        raise ValueError(f"policy {options.action} needs one version, such as: policy {options.action} 3")
    return int(options.versions[0])


def _row(entry: Json) -> tuple[str, ...]:
    made = entry["created_at"]
    gate, metrics = entry["gate"] or {}, entry["metrics"] or {}
    checks = "" if not gate else ("passed" if gate.get("passed") else gate.get("reason", ""))
    return (
        str(entry["version"]),
        "-" if entry["parent"] is None else str(entry["parent"]),
        entry["status"],
        str(entry["num_samples"] or "-"),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(made)) if made else "base model",
        f"{metrics['loss']:.4f}" if metrics else "-",
        "; ".join([checks, *gate.get("history", [])]).strip("; "),
    )


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
