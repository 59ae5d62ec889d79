"""The overlay as a series of patches for torch's source tree: one for each system, made for ``git am``."""

from __future__ import annotations

import os
import subprocess
import tempfile
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch_regions._merge as _merge
from torch_regions._errors import OverlayError


if TYPE_CHECKING:
    from torch_regions._manifest import Manifest, Replacement
    from torch_regions._verify import StockSources

_AUTHOR = ("torch-regions", "torch-regions@invalid")
_DATE = "2026-01-01T00:00:00+0000"  # the same text for the same overlay


@dataclass(frozen=True)
class System:
    """What one patch is about. A module belongs to the first system that has a beginning of its name."""

    title: str
    modules: tuple[str, ...]


SYSTEMS = (
    System("Trace bodies with wrap semantics", ("torch._dynamo.subgraph_", "torch._dynamo.variables.higher_order_ops")),
    System(
        "Find and outline repeated regions",
        (
            "torch._dynamo.graph_deduplication",
            "torch._dynamo.graph_region_tracker",
            "torch._dynamo.output_graph",
            "torch._dynamo.regions.frame",
            "torch._dynamo.regions.keys",
            "torch._dynamo.regions.outcomes",
            "torch._dynamo.regions.outline",
            "torch._dynamo.regions.stack_trace",
            "torch.fx.operator_facts",
            "torch.utils._ambient_state",
        ),
    ),
    System("Reuse traced regions", ("torch._guards", "torch._dynamo.")),
    System(
        "Keep compiled regions and find them again",
        (
            "torch._functorch._aot_autograd.autograd_cache",
            "torch._functorch._aot_autograd.canonical_",
            "torch._inductor.codecache",
            "torch._inductor.regions.bodies",
            "torch._inductor.regions.cache",
            "torch._inductor.regions.object_code",
            "torch._inductor.runtime.cache_",
        ),
    ),
    System(
        "Pay for a call of a region by its boundary",
        (
            "torch._functorch.",
            "torch._higher_order_ops.",
            "torch._inductor.",
            "torch._ops",
            "torch._subclasses.",
            "torch.fx.",
            "torch.utils.",
        ),
    ),
)


@dataclass
class _Patch:
    system: System
    rows: list[Replacement] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)  # path in torch's source tree -> text


def system_of(module: str) -> System:
    """The system that a module belongs to.  Raises ``OverlayError``."""
    for system in SYSTEMS:
        if module.startswith(system.modules):
            return system
    raise OverlayError(f"{module} belongs to no system: add it to SYSTEMS in _export.py")


def patches(manifest: Manifest, files: dict[str, str], sources: StockSources) -> tuple[list[_Patch], dict[str, str]]:
    """What each patch changes, and the stock texts of the files that are changed."""
    found = {system: _Patch(system) for system in SYSTEMS}
    stock_texts: dict[str, str] = {}
    for module, ours in sorted(files.items()):
        rows = [row for row in manifest.rows if row.module == module]
        patch = found[system_of(module)]
        patch.rows += rows
        stock = sources.path(module)
        path = f"{module.replace('.', '/')}{'/__init__' if ours.endswith('__init__.py') else ''}.py"
        text = _read(ours)
        if stock is not None:
            stock_texts[path] = _read(stock)
        if any(row.kind == "symbol" for row in rows):
            text = _merge.merge(stock_texts[path], text, module)
        patch.files[path] = text
    return [patch for patch in found.values() if patch.files], stock_texts


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as stream:
        return stream.read()


def _message(patch: _Patch) -> str:
    lines = [patch.system.title, ""]
    for row in patch.rows:
        lines += textwrap.wrap(f"{row.target}: {row.purpose}", 72, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(lines) + "\n"


def _write(folder: str, texts: dict[str, str]) -> None:
    for path, text in texts.items():
        full = os.path.join(folder, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as stream:
            stream.write(text)


def export(target: str, manifest: Manifest, files: dict[str, str], sources: StockSources, release: str) -> list[str]:
    """Writes the series into the folder ``target``; returns the names of its files, in order.

    Raises ``OverlayError`` where an extension cannot be written into its module, or git is missing or fails.
    """
    series, stock_texts = patches(manifest, files, sources)
    os.makedirs(target, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        _git(folder, "init", "-q")
        _write(folder, stock_texts)
        _commit(folder, f"torch {release}\n")
        for patch in series:
            _write(folder, patch.files)
            _commit(folder, _message(patch))
        options = ("--no-signature", "--zero-commit", "--no-stat")
        output = _git(folder, "format-patch", *options, "-o", os.path.abspath(target), f"HEAD~{len(series)}")
    return [os.path.basename(line) for line in output.splitlines()]


def _commit(folder: str, message: str) -> None:
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "--no-verify", "-m", message)


def _git(folder: str, *arguments: str) -> str:
    name, mail = _AUTHOR
    people = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in
              (("NAME", name), ("EMAIL", mail), ("DATE", _DATE))}  # fmt: skip
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | people | alone
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, env=environment)
    except OSError as error:
        raise OverlayError(f"export needs git: {error}") from error
    if done.returncode:
        raise OverlayError(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout
