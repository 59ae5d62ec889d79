"""Subprocesses under chosen overlays and chosen copies of torch. Nothing here imports torch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

import torch_regions
from torch_regions import _refresh
from torch_regions._files import overlay_files
from torch_regions._verify import StockSources

from . import vectors


REPO = Path(__file__).resolve().parents[2]
# Where this process has the package from; another one may be installed.
OURS = Path(torch_regions.__file__).resolve().parents[1]
TORCH = Path(importlib.util.find_spec("torch").submodule_search_locations[0])
VERSION = next(
    line.split("=")[1].strip().strip("'\"")
    for line in (TORCH / "version.py").read_text().splitlines()
    if line.startswith("__version__")
)
RELEASE = VERSION.partition("+")[0]


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.err.splitlines() if "OverlayWarning" in line]


def run_python(
    *arguments: str, path=(), cwd=None, check=True, python=sys.executable, timeout=300, **env: str
) -> Result:
    environment = vectors.environment_without("TORCH", "PYTHON")
    ours = [OURS] if python == sys.executable else []
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [*path, *ours]))
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment.update(env)
    done = subprocess.run(
        [python, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd or tempfile.gettempdir(),
        env=environment,
        timeout=timeout,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return Result(done.returncode, done.stdout, done.stderr)


def run_code(code: str, **kwargs) -> Result:
    return run_python("-c", textwrap.dedent(code), **kwargs)


class Toy:
    """A distribution of torch-regions with an overlay of its own, found before the installed one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "torch_regions").symlink_to(REPO / "torch_regions")
        info = root / "torch_regions-9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-regions\nVersion: 9\n")
        (info / "entry_points.txt").write_text("[torch.backends]\ntorch_regions = torch_regions._activate:activate\n")

    def file(self, name: str, text: str) -> Path:
        path = self.root / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.toml"

    def build(self) -> Toy:
        """Write a manifest that fits the files and the installed torch."""
        rows = _refresh.wanted_rows(overlay_files(str(self.root)), StockSources(str(TORCH)))
        always = 'always = "a test"\n'
        text = f'format = 1\n[torch]\nreleases = ["{RELEASE}"]\n'
        for target, (kind, _) in rows.items():
            text += (
                f'[[replacement]]\ntarget = "{target}"\nkind = "{kind}"\npurpose = "a test"\nremove_when = "never"\n'
                f'group = "core"\n{always if kind != "new" else ""}'
            )
        self.manifest.write_text(text)
        _refresh.refresh(str(self.root), str(TORCH), VERSION)
        return self

    def run(self, code: str, path=(), **kwargs) -> Result:
        return run_code(code, path=[self.root, *path], **kwargs)


SCOPE = '''
    """A scope module of ours."""
    import contextlib

    OURS = True
    _current_scope_id = []

    def current_scope_id():
        return 1 + len(_current_scope_id)

    @contextlib.contextmanager
    def enter_new_scope():
        _current_scope_id.append(None)
        try:
            yield
        finally:
            _current_scope_id.pop()
'''

ERRORS = '''
    """An extension of a module that is not imported yet."""
    from torch_regions.overlay import replaces, stock

    @replaces
    class OperatorIssue(RuntimeError):
        """A class of ours."""

        @staticmethod
        def operator_str(target, args, kwargs):
            return "ours " + stock("torch._inductor.exc:OperatorIssue.operator_str")(target, args, kwargs)

    class AddedError(OperatorIssue):
        """Stock has none."""

        class Inner:
            pass
'''

GUARDS = '''
    """An extension of a module that `import torch` imports, and that many others copy names from."""
    from torch_regions.overlay import replaces, stock

    calls = []

    @replaces
    def detect_fake_mode(inputs=None):
        calls.append("detect_fake_mode")
        return stock("torch._guards:detect_fake_mode")(inputs)

    @replaces("InvokeSubgraphCache.get_autograd_key_entry")
    def get_autograd_key_entry(self, identifier):
        calls.append("get_autograd_key_entry")
        return stock("torch._guards:InvokeSubgraphCache.get_autograd_key_entry")(self, identifier)

    @replaces("TracingContext.get")
    @staticmethod
    def _get():
        calls.append("get")
        return stock("torch._guards:TracingContext.get")()
'''

COND = '''
    """An extension of an operator whose dispatch tables are filled already."""
    from torch_regions.overlay import replaces, stock

    @replaces
    def cond_op_dense(pred, true_fn, false_fn, operands):
        global seen
        seen = True
        return stock("torch._higher_order_ops.cond:cond_op_dense")(pred, true_fn, false_fn, operands)
'''

BACKENDS = '''
    """An extension of a module that registers its functions in a table elsewhere."""
    from torch_regions.overlay import replaces

    @replaces
    def eager_noexcept(gm, fake_tensor_inputs, **kwargs):
        """A backend of ours."""
        return gm.forward
'''


def torch_copy(folder: Path, changed: dict[str, str] | None = None) -> Path:
    """A copy of the installed torch made of links; `changed` maps files of it, or new ones, to their text."""
    copy = folder / "torch"
    copy.mkdir(parents=True)
    _link_into(TORCH, copy, {Path(name): text for name, text in (changed or {}).items()})
    return folder


def _link_into(source: Path, target: Path, changed: dict[Path, str]) -> None:
    inner = {name.parts[0] for name in changed if len(name.parts) > 1}
    for entry in source.iterdir():
        if entry.name == "__pycache__":
            continue
        if entry.name in inner:
            (target / entry.name).mkdir()
            below = {
                name.relative_to(entry.name): text for name, text in changed.items() if name.parts[0] == entry.name
            }
            _link_into(entry, target / entry.name, below)
        elif Path(entry.name) not in changed:
            (target / entry.name).symlink_to(entry)
    for name, text in changed.items():
        if len(name.parts) == 1 or not (source / name.parts[0]).is_dir():  # here, or in a folder that is new
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(text)
    _link_compiled(source, target, {name.name for name in changed if len(name.parts) == 1})


def _link_compiled(source: Path, target: Path, changed: set[str]) -> None:
    """Links what Python has compiled of files that are the same: the processes of a copy write nothing beside it."""
    compiled = target / "__pycache__"
    compiled.mkdir()
    for entry in (source / "__pycache__").glob("*.pyc"):
        if f"{entry.name.partition('.')[0]}.py" not in changed:
            (compiled / entry.name).symlink_to(entry)


def stock_text(name: str) -> str:
    return (TORCH / name).read_text()


# Holders of stock objects that were replaced, found without the loader's own walk.
STALE = """
    import gc, sys, types
    from torch_regions import overlay, status
    from torch_regions._held import Box, Snapshot

    def own_parts(old):
        if not isinstance(old, type):
            return set()
        cells = [
            cell
            for value in vars(old).values()
            for cell in (getattr(getattr(value, "__func__", value), "__closure__", None) or ())
        ]
        return {id(old.__mro__), *map(id, vars(old).values()), *map(id, cells)}

    def holders():
        for target, box in overlay._stock.items():
            old = box.value
            for holder in gc.get_referrers(old):
                if isinstance(holder, (Box, Snapshot, types.FrameType)) or id(holder) in own_parts(old):
                    continue
                yield target, type(holder), str(holder)[:200]

    def stock_code(paths):
        for item in gc.get_objects():
            if isinstance(item, types.FunctionType) and item.__code__.co_filename in paths:
                yield item
"""
