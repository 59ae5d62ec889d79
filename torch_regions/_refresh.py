"""Writes the hashes of manifest.toml anew. It keeps what people wrote there, comments included."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import torch_regions._dynamo_rules as _dynamo_rules
import torch_regions._fingerprint as _fingerprint
import torch_regions._manifest as _manifest
import torch_regions._marks as _marks
from torch_regions._errors import ManifestError
from torch_regions._files import overlay_files
from torch_regions._manifest import split_target
from torch_regions._verify import StockSources, base_release


class MissingText(ManifestError):
    """Some replacements have no row, or a row without purpose, remove_when or group."""


def _doc_line(node: ast.AST) -> str:
    text = ast.get_docstring(node) or ""  # type: ignore[arg-type]
    return text.strip().splitlines()[0] if text.strip() else ""


def wanted_rows(files: dict[str, str], sources: StockSources) -> dict[str, tuple[str, str]]:
    """Target -> (kind, first line of our docstring), for every replacement in `files`.

    A file without marks replaces its stock module whole. Raises OSError or SyntaxError when a file cannot be read.
    """
    found: dict[str, tuple[str, str]] = {}
    for module, path in sorted(files.items()):
        tree = _fingerprint.parse(path)
        marked = _marks.marks(tree)
        if sources.path(module) is None:
            found[module] = ("new", _doc_line(tree))
        elif marked:
            for symbol, node in marked.items():
                found[f"{module}:{symbol}"] = ("symbol", _doc_line(node))
        else:
            found[module] = ("module", _doc_line(tree))
    return found


def _snippet(target: str, kind: str, doc: str) -> str:
    return (
        f'[[replacement]]\ntarget = "{target}"\nkind = "{kind}"\ngroup = "core, cost, cache or speed"\n'
        f'purpose = "{doc or "what our version is for"}"\nremove_when = "when stock makes it needless"\n'
    )


def _require_texts(wanted: dict[str, tuple[str, str]], document: Any) -> None:
    rows = {row.get("target"): row for row in document.get("replacement", [])}
    missing = []
    for target, (kind, doc) in wanted.items():
        row = rows.get(target, {})
        if not row.get("purpose") or not row.get("remove_when") or not row.get("group"):
            missing.append(_snippet(target, kind, doc))
    if missing:
        raise MissingText(
            "these replacements need a row with a purpose, a remove_when and a group, by someone who knows them:\n\n"
            + "\n".join(missing)
        )


def _hash_table(targets: set[str], old: Any, release: str, sources: StockSources) -> tuple[Any, list[str]]:
    """The `uses` table for `targets`, with the old hashes of other releases; and the targets that stock lacks."""
    import tomlkit

    table, lacking = tomlkit.table(), []
    # Only people add attributes of classes, so those in the manifest stay.
    kept = {name for name in old if "." in (split_target(name)[1] or "")}
    for target in sorted(targets | kept):
        sha = sources.sha(target)
        others = {known: value for known, value in dict(old.get(target, {})).items() if known != release}
        if sha is None and all(value == _manifest.ABSENT for value in others.values()):
            if sources.path(split_target(target)[0]) is not None:
                lacking.append(target)
            continue
        hashes = tomlkit.inline_table()
        others[release] = sha or _manifest.ABSENT
        hashes.update(sorted(others.items()))  # the same order, whichever release was refreshed last
        table[target] = hashes
    return table, lacking


def _uses_of(row_target: str, kind: str, files: dict[str, str], sources: StockSources, first: bool) -> set[str]:
    module, symbol = split_target(row_target)
    found = _marks.uses(_fingerprint.parse(files[module]), module, sources)
    names = found.get(symbol, set()) | (found[None] if first else set())
    own = {name for name in names if _is_ours(name, files, sources)}
    return names - own if kind != "symbol" else {name for name in names - own if name != row_target}


def _is_ours(target: str, files: dict[str, str], sources: StockSources) -> bool:
    """Whether the target is the overlay's own, in a new module or added to a stock module: it needs no hash."""
    module, symbol = split_target(target)
    if module not in files:
        return False
    tree = _fingerprint.parse(files[module])
    if sources.path(module) is None or not _marks.marks(tree):
        return True
    return sources.sha(target) is None and symbol in {getattr(node, "name", None) for node in tree.body}


def _refresh_rows(
    document: Any, files: dict[str, str], release: str, sources: StockSources
) -> tuple[set[str], list[str]]:
    import tomlkit

    touched: set[str] = set()
    lacking: list[str] = []
    rows = document.get("replacement", [])
    # Module -> the row that gets the names that no replacement uses: if possible, a row for all releases.
    first = {split_target(row["target"])[0]: row["target"] for row in reversed(rows)}
    first.update({split_target(row["target"])[0]: row["target"] for row in reversed(rows) if "releases" not in row})
    for row in rows:
        target, kind = row["target"], row["kind"]
        module = split_target(target)[0]
        if release not in row.get("releases", [release]):
            continue
        if kind != "new":
            sha = sources.sha(target)
            if sha is None:
                raise ManifestError(f"{target}: stock has no such definition")
            if "sha256" not in row:
                row["sha256"] = tomlkit.inline_table()
            row["sha256"][release] = sha
            touched.add(module)
        if kind == "module":
            _set_parts(row, release, module, sources)
        names = _uses_of(target, kind, files, sources, first[module] == target)
        table, missing = _hash_table(names, row.get("uses", {}), release, sources)
        lacking += [f"{target} uses {name}, which stock has not" for name in missing]
        if table:
            touched |= {split_target(name)[0] for name in table}
            table.add(tomlkit.nl())
            row["uses"] = table
        else:
            row.pop("uses", None)
    return touched, lacking


def _set_parts(row: Any, release: str, module: str, sources: StockSources) -> None:
    import tomlkit

    path = sources.path(module)
    if path is None:
        return
    if "parts" not in row:
        row["parts"] = tomlkit.table(True)
    table = tomlkit.table()
    for name, sha in _fingerprint.definition_shas(sources.tree(path)).items():
        table[name] = sha
    table.add(tomlkit.nl())
    row["parts"][release] = table


def loader_targets() -> set[str]:
    """The stock names that the loader itself wraps or relies on."""
    wrapped = {f"{module}:{name}" for module, names in _dynamo_rules.MODULES.items() for name in names}
    return wrapped | {
        "torch.compiler.config:cache_key_tag",
        "torch.utils._config_module:ConfigModule.__getattr__",
        "torch.utils._config_module:ConfigModule.__setattr__",
        "torch._dynamo.trace_rules:check_file",
        "torch:_import_device_backends",
    }


def refresh(root: str, torch_dir: str, version: str) -> list[str]:
    """Rewrite the manifest at `root` for the torch in `torch_dir`; returns remarks for the author.

    Raises MissingText if a replacement has no purpose, remove_when or group yet, and ManifestError if a row names
    something that stock or the overlay lacks. Then the file is not written.
    """
    import tomlkit

    path = Path(root, _manifest.NAME)
    document: Any = tomlkit.parse(path.read_text(encoding="utf-8"))
    files = overlay_files(root)
    sources = StockSources(torch_dir)
    release = base_release(version)
    kinds = {row["target"]: row["kind"] for row in document.get("replacement", [])}
    wanted = wanted_rows(files, sources)
    _require_texts(wanted, document)
    for target in kinds.keys() - wanted.keys():
        raise ManifestError(f"{target} has a row, but no file of the overlay makes this replacement")
    touched, remarks = _refresh_rows(document, files, release, sources)
    loader = document.setdefault("loader", tomlkit.table())
    table, missing = _hash_table(loader_targets(), loader.get("uses", {}), release, sources)
    touched |= {split_target(name)[0] for name in table}
    table.add(tomlkit.nl())
    loader["uses"] = table
    remarks += [f"the loader uses {name}, which stock has not" for name in missing]
    _write_releases(document, release)
    _write_stock_files(document, release, touched, sources)
    text = tomlkit.dumps(document)
    _manifest.parse(text)
    temporary = path.with_suffix(".toml.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    return remarks


def _write_releases(document: Any, release: str) -> None:
    releases = document["torch"]["releases"]
    if release not in releases:
        releases.append(release)


def _write_stock_files(document: Any, release: str, modules: set[str], sources: StockSources) -> None:
    import tomlkit

    table = tomlkit.table()
    for module in sorted(modules):
        path = sources.path(module)
        if path is not None:
            table[sources.relative(path)] = sources.file_sha(path)
    stock_files = document.setdefault("stock_files", tomlkit.table(True))
    stock_files[release] = table
