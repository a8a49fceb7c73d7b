"""``openclaw-rl policy …``: inspect versions, choose one, export one.

All actions work on the data folder itself, with or without a running server; a server follows the ledger
and switches at once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.capture.inspect import view_policies, view_policy
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.versions import CANDIDATE, REJECTED, RETIRED, SERVING, TRAINING
from openclaw_rl.config import Config
from openclaw_rl.models import default_cache_dir, resolve_model, short_name
from openclaw_rl.processes.exports import VERSION, Exports
from openclaw_rl.processes.parts import open_ledgers, open_store
from openclaw_rl.train import publish
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import BASE_VERSION, Json, Policy, Scope

_ALL = 1_000_000


def run(options: argparse.Namespace, config: Config) -> int:
    ledgers = open_ledgers(config)
    try:
        commands = _Commands(config, ledgers.policies, open_store(config))
        print(getattr(commands, options.action)(options))
        return 0
    finally:
        ledgers.close()


class _Commands:
    def __init__(self, config: Config, policy_ledger: PolicyLedger, store: PolicyStore) -> None:
        self.config, self.policy_ledger, self.store = config, policy_ledger, store

    # --- views -------------------------------------------------------------------------------

    def list(self, options: argparse.Namespace) -> str:
        view = view_policies(self.policy_ledger, self.policy_ledger.serving, options.scope)
        if options.json:
            return json.dumps(view, indent=2)
        head = ("version", "parent", "status", "samples", "made", "disk", "loss", "checks")
        return _table([head, *map(self._row, view["data"])])

    def show(self, options: argparse.Namespace) -> str:
        """The version's ledger entry, its samples, and its folder."""
        version = _one(options)
        if version == BASE_VERSION:
            model, serves = (
                self.config.engine.model,
                self.policy_ledger.serving(options.scope) == BASE_VERSION,
            )
            return json.dumps(
                {"version": 0, "status": SERVING if serves else RETIRED, "model": model}, indent=2
            )
        row, there = view_policy(self._policy(version)), self.store.exists(version)
        folder = str(self.store.path(version)) if there else None
        samples = self.store.manifest(version)["samples"] if there else None
        return json.dumps({**row, "folder": folder, "samples": samples}, indent=2)

    def diff(self, options: argparse.Namespace) -> str:
        from openclaw_rl.train.export import difference

        if len(options.versions) != 2:
            raise ValueError("policy diff needs two versions, such as: openclaw-rl policy diff 1 2")
        first, second = (self._folder(version) for version in options.versions)
        changes = list(difference(first, second))
        total = sum(norm**2 for _, norm, _ in changes) ** 0.5
        if options.json:
            modules = [{"module": m, "norm": n, "share": s} for m, n, s in changes]
            return json.dumps({"norm": total, "modules": modules}, indent=2)
        strongest = sorted(changes, key=lambda change: -change[1])[:10]
        rows = [(m, f"{n:.4f}", "new" if s is None else f"{s:.1%}") for m, n, s in strongest]
        says = f"norm of the whole change: {total:.4f}"
        return says if not rows else f"{says}\n" + _table([("changed most", "norm", "of before"), *rows])

    # --- decisions ---------------------------------------------------------------------------

    def promote(self, options: argparse.Namespace) -> str:
        version = _one(options)
        if version == self.policy_ledger.serving(options.scope):
            return f"version {version} serves already"
        return self._serve(version, "promoted by hand", options.scope)

    def rollback(self, options: argparse.Namespace) -> str:
        serving = self.policy_ledger.serving(options.scope)
        if serving == BASE_VERSION:
            raise ValueError(
                "the base is being served and nothing came before it; "
                "to serve a version: openclaw-rl policy promote N"
            )
        version = _one(options) if options.versions else self._policy(serving).parent or BASE_VERSION
        if version >= serving:
            raise ValueError(
                f"version {version} is not before version {serving}, which serves; "
                f"to serve it all the same: openclaw-rl policy promote {version}"
            )
        return self._serve(version, f"rolled back by hand from version {serving}", options.scope)

    def _serve(self, version: int, why: str, scope: Scope) -> str:
        policy = None if version == BASE_VERSION else self._policy(version)
        if policy is not None and policy.status in (TRAINING, CANDIDATE):
            raise ValueError(
                f"version {version} is still being trained or checked; it serves by itself once it passes"
            )
        self._folder(version)
        before = self.policy_ledger.serving(scope)
        publish.promote(self.policy_ledger, self.store, version, why, scope)
        note = ", although it had not passed its checks" if policy and policy.status == REJECTED else ""
        return f"version {version} serves new requests from now on, instead of version {before}{note}"

    # --- export and prune --------------------------------------------------------------------

    def export(self, options: argparse.Namespace) -> str:
        from openclaw_rl.train.export import export_merged, export_peft

        version, folder = _one(options), self._folder(_one(options))
        if folder is None:
            raise ValueError(
                f"version 0 is {self.config.engine.model} itself; "
                "export one of those that 'openclaw-rl policy list' shows"
            )
        if options.to is None:
            file = "FILE.gguf" if options.format == "gguf" else "FOLDER"
            raise ValueError(f"policy export needs a place to write to: --to {file}")
        target = Path(options.to).expanduser()
        with Exports(self.config.home).writing(target, VERSION, version=version):
            if options.format == "peft":
                export_peft(folder, target)
            else:
                base = resolve_model(self.config.engine.model, default_cache_dir())
                if options.format == "merged":
                    export_merged(folder, base, target)
                else:
                    from openclaw_rl.train.gguf import export_gguf

                    name = short_name(self.config.engine.model)
                    export_gguf(folder, base, target, f"{name}, version {version}")
        return f"version {version} exported to {target}"

    def prune(self, options: argparse.Namespace) -> str:
        """Delete the files of old versions; their ledger entries stay."""
        number = self.config.learn.keep_versions if options.keep is None else options.keep
        if number < 1:
            raise ValueError("prune keeps at least the version that serves: --keep 1 or more")
        keep = self._needed(number)
        gone = [
            policy.version
            for policy in reversed(self.policy_ledger.list_policies(_ALL, scope=None))
            if policy.status in (RETIRED, REJECTED)
            and policy.version not in keep
            and self.store.path(policy.version).exists()
        ]
        freed = sum(map(self.store.num_bytes, gone))
        for version in gone:
            self.store.forget(version, only_state=False)
        if not gone:
            return "nothing to remove"
        return f"removed the files of version {', '.join(map(str, gone))}: {_size(freed)} freed"

    def _needed(self, number: int) -> set[int]:
        """Per scope the last versions of the serving line, at least two; an unfinished step's parent."""
        unfinished = self.policy_ledger.unfinished()
        needed = {unfinished.parent or BASE_VERSION if unfinished else BASE_VERSION}
        for serving in self.policy_ledger.serving_table().values():
            line = [serving]
            while (policy := self.policy_ledger.policy(line[-1])) is not None and policy.parent:
                line.append(policy.parent)
            needed.update(line[: max(number, 2)])
        return needed

    # --- shared ------------------------------------------------------------------------------

    def _policy(self, version: int) -> Policy:
        policy = self.policy_ledger.policy(version)
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
        if (problem := self.store.problem(version)) is not None:
            raise ValueError(problem)
        return self.store.path(version)

    def _row(self, entry: Json) -> tuple[str, ...]:
        version, made = entry["version"], entry["created_at"]
        gate, metrics = entry["gate"] or {}, entry["metrics"] or {}
        verdict = "passed" if gate.get("passed") else gate.get("reason", "")
        return (
            str(version),
            "-" if entry["parent"] is None else str(entry["parent"]),
            entry["status"],
            str(entry["num_samples"] or "-"),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(made)) if made else "base model",
            _size(self.store.num_bytes(version)) if self.store.has_weights(version) else "-",
            f"{metrics['loss']:.4f}" if "loss" in metrics else "-",
            "; ".join(filter(None, [verdict, *gate.get("history", [])])),
        )


def _one(options: argparse.Namespace) -> int:
    if len(options.versions) != 1:
        example = f"openclaw-rl policy {options.action} 3"
        raise ValueError(f"policy {options.action} needs one version, such as: {example}")
    return int(options.versions[0])


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
