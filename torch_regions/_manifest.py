"""manifest.toml as data."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch_regions._errors import ManifestError
from torch_regions._groups import CORE, GROUPS


if TYPE_CHECKING:
    from collections.abc import Iterable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORMAT = 1
NAME = "manifest.toml"
# Rows of these groups never run in a compile without flag and mark.
NEVER_ALWAYS = ("cost", "speed")

# Instead of a sha256: the release has no such name, and the file that uses the name checks the release first.
ABSENT = "absent"

Hashes = dict[str, str]  # torch release -> sha256 or ABSENT


def split_target(target: str) -> tuple[str, str | None]:
    """The module and the symbol of "torch.a.b:C.d"; the symbol of a whole module is None."""
    module, _, symbol = target.partition(":")
    return module, symbol or None


@dataclass(frozen=True)
class Replacement:
    """One row: its target, the reason, and the hashes that stock's source must have."""

    target: str
    kind: str  # "module" (stock's is replaced whole), "new" (stock has none), "symbol"
    purpose: str
    remove_when: str
    sha256: Hashes
    uses: dict[str, Hashes]
    # For a whole module: release -> function or method -> sha256, so that a warning can name what changed
    parts: dict[str, Hashes]
    # One of GROUPS
    group: str
    # Why the replacement runs in programs without flag and mark too; empty if it does not
    always: str
    # The releases that the row is for; empty if it is for all
    releases: tuple[str, ...] = ()
    # For a gain or a fix for programs without regions too: the title of its patch, see `export --generic`
    generic: str = ""

    def is_for(self, release: str) -> bool:
        return not self.releases or release in self.releases

    @property
    def module(self) -> str:
        return split_target(self.target)[0]

    @property
    def symbol(self) -> str | None:
        return split_target(self.target)[1]


@dataclass(frozen=True)
class Manifest:
    releases: tuple[str, ...]
    rows: tuple[Replacement, ...]
    loader_uses: dict[str, Hashes]
    # release -> stock file, relative to torch's folder -> sha256 of its bytes
    stock_files: dict[str, Hashes]

    def symbols_of(self, groups: Iterable[str]) -> frozenset[str]:
        """The stock symbols that the rows of `groups` replace."""
        wanted = frozenset(groups)
        return frozenset(row.target for row in self.rows if row.kind == "symbol" and row.group in wanted)

    def not_for(self, release: str) -> frozenset[str]:
        """The targets that stay stock's on `release`, because their rows are for other releases."""
        return frozenset(row.target for row in self.rows if not row.is_for(release))

    def on(self, release: str) -> Manifest:
        """The manifest without the rows that are for other releases."""
        return replace(self, rows=tuple(row for row in self.rows if row.is_for(release)))

    def groups_by_target(self) -> dict[str, frozenset[str]]:
        """Stock source -> groups of the rows that depend on it; what the loader itself uses belongs to `core`."""
        found: dict[str, frozenset[str]] = dict.fromkeys(self.loader_uses, frozenset({CORE}))
        for row in self.rows:
            for target in (row.target, *row.uses):
                found[target] = found.get(target, frozenset()) | {row.group}
        return found

    def hashes(self) -> dict[str, Hashes]:
        """Stock source that the overlay depends on -> its fingerprints."""
        wanted: dict[str, Hashes] = dict(self.loader_uses)
        for row in self.rows:
            wanted.update(row.uses)
        for row in self.rows:
            if row.kind != "new":
                wanted[row.target] = row.sha256
        return wanted


def _field(table: dict[str, Any], key: str, kind: type, where: str, default: Any = None) -> Any:
    value = table.get(key, default)
    if not isinstance(value, kind):
        problem = "lacks" if value is None else "has a wrong value for"
        raise ManifestError(f"{NAME}: {where} {problem} '{key}'")
    return value


def _hashes(table: dict[str, Any], where: str) -> Hashes:
    if not all(isinstance(value, str) for value in table.values()):
        raise ManifestError(f"{NAME}: {where} must map torch releases to sha256 strings")
    return dict(table)


def _uses(table: dict[str, Any], where: str) -> dict[str, Hashes]:
    found = {}
    for name, hashes in table.items():
        if not isinstance(hashes, dict) or ":" not in name:
            raise ManifestError(f"{NAME}: {where}: uses '{name}' must read \"module:name\" = {{ release = sha256 }}")
        found[name] = _hashes(hashes, f"{where}: uses '{name}'")
    return found


def _row(table: Any) -> Replacement:
    if not isinstance(table, dict):
        raise ManifestError(f"{NAME}: 'replacement' must be an array of tables")
    target = _field(table, "target", str, "a replacement")
    where = f"replacement '{target}'"
    kind = _field(table, "kind", str, where)
    if kind not in ("module", "new", "symbol") or (kind == "symbol") != (":" in target):
        raise ManifestError(
            f"{NAME}: {where}: kind must be 'module' or 'new' for a target without ':' and 'symbol' for one with it"
        )
    group = _field(table, "group", str, where)
    always = _field(table, "always", str, where, "")
    if group not in GROUPS:
        raise ManifestError(f"{NAME}: {where}: group must be one of {', '.join(GROUPS)}")
    if always and (kind == "new" or group in NEVER_ALWAYS):
        raise ManifestError(f"{NAME}: {where}: a row of the kind '{kind}' and group '{group}' does not run always")
    if kind == "module" and not always:
        raise ManifestError(
            f"{NAME}: {where}: a whole module is there in every program, and has to say why in 'always'"
        )
    only = _field(table, "releases", list, where, [])
    if only and kind != "symbol":
        raise ManifestError(f"{NAME}: {where}: only a row of the kind 'symbol' can be for some releases alone")
    return Replacement(
        group=group,
        always=always,
        target=target,
        kind=kind,
        purpose=_field(table, "purpose", str, where),
        remove_when=_field(table, "remove_when", str, where),
        sha256=_hashes(_field(table, "sha256", dict, where, {} if kind == "new" else None), where),
        uses=_uses(_field(table, "uses", dict, where, {}), where),
        parts={
            release: _hashes(_field(table["parts"], release, dict, where), f"{where}: parts")
            for release in _field(table, "parts", dict, where, {})
        },
        releases=tuple(str(release) for release in only),
        generic=_field(table, "generic", str, where, ""),
    )


def parse(text: str) -> Manifest:
    """Read a manifest. Raises a ManifestError that names the row and the field at fault."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{NAME} is not valid TOML: {error}") from error
    version = _field(data, "format", int, "the header")
    if version != FORMAT:
        raise ManifestError(f"{NAME} has format {version}, this loader reads format {FORMAT}")
    releases = _field(_field(data, "torch", dict, "the header"), "releases", list, "[torch]")
    rows = tuple(_row(table) for table in _field(data, "replacement", list, "the file", []))
    targets = [row.target for row in rows]
    for target in targets:
        if targets.count(target) > 1:
            raise ManifestError(f"{NAME}: two rows for '{target}'")
    stock_files = _field(data, "stock_files", dict, "the file", {})
    loader = _field(data, "loader", dict, "the file", {})
    return Manifest(
        releases=tuple(str(release) for release in releases),
        rows=rows,
        loader_uses=_uses(_field(loader, "uses", dict, "[loader]", {}), "[loader]"),
        stock_files={
            release: _hashes(_field(stock_files, release, dict, "[stock_files]"), f"stock_files '{release}'")
            for release in stock_files
        },
    )


def load(path: str) -> Manifest:
    """Read a manifest file. Raises ManifestError, also if the file cannot be read."""
    try:
        with open(path, encoding="utf-8") as stream:
            return parse(stream.read())
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{NAME} cannot be read: {error}") from error
