"""Executes an overlay file in the namespace of its stock module, and puts its replacements in place."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch_regions._sources as _sources
import torch_regions.overlay as overlay
from torch_regions._errors import OverlayError
from torch_regions._held import Snapshot
from torch_regions._patch import Patch, restore


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from torch_regions._loader import OverlayLoader

# Execution binds these in any file, and `_` where a nameless function is registered; the stock module keeps its own.
_NOT_OURS = frozenset(
    {"_", "__doc__", "__annotations__", "__annotate__", "__conditional_annotations__", "__builtins__"}
)


# module name -> the extended module, and what the file added to it
_additions: dict[str, tuple[ModuleType, dict[str, Any]]] = {}


def _without_additions(module: ModuleType) -> None:
    """Remove what the file added before a reload, which executes stock's code in the same namespace."""
    extended, added = _additions.pop(module.__name__, (module, {}))
    if extended is module:
        for name, value in added.items():
            if vars(module).get(name) is value:
                del vars(module)[name]


def _collect(recorder: overlay.Recorder, path: str) -> dict[str, Any]:
    """The definitions that the file adds. Raises OverlayError when an unmarked one hides a stock name."""
    before = recorder.before
    added = {}
    for name, value in vars(recorder.module).items():
        if name in _NOT_OURS or name in recorder.unmatched or isinstance(value, overlay.Marker):
            continue
        if name not in before:
            added[name] = value
        elif before[name] is not value and name not in recorder.marked:
            raise OverlayError(
                f"{path} binds '{name}', which {recorder.module.__name__} has already: "
                "mark it with @replaces or give it another name"
            )
    return added


def _check_kinds(recorder: overlay.Recorder, path: str, always: frozenset[str]) -> None:
    """Raises OverlayError unless each replacement is of the same kind as stock's: callers bind kinds differently."""
    for symbol, new in recorder.marked.items():
        old = overlay.lookup(recorder.before, symbol)
        if "." in symbol:
            if symbol.split(".")[0] in recorder.marked:
                raise OverlayError(f"{path} replaces {symbol} and its whole class")
            special = (classmethod, staticmethod, property, FunctionType)
            if isinstance(old, special) and isinstance(new, special) and type(old) is not type(new):
                raise OverlayError(f"{path}: {symbol} is a {type(old).__name__} in stock, not a {type(new).__name__}")
        elif isinstance(old, type) != isinstance(new, type):
            raise OverlayError(f"{path}: only a class can replace a class ({symbol})")
        plain = isinstance(getattr(old, "__func__", old), FunctionType)
        if not plain and f"{recorder.module.__name__}:{symbol}" not in always:
            raise OverlayError(f"{path}: {symbol} is no function that can be switched; its row has to say 'always'")


def extend(
    module: ModuleType,
    loader: OverlayLoader,
    always: frozenset[str] = frozenset(),
    left_out: frozenset[str] = frozenset(),
    begun: Callable[[Patch], object] | None = None,
) -> Patch:
    """Execute an extension file after its stock module.

    Targets in `left_out` stay stock's, targets in `always` are replaced, and the others are switched on for compiles
    with regions. `begun` gets the patch before anything is changed.

    Raises OverlayError when the file does not fit the module, and whatever the file itself raises. The module is then
    as stock left it.
    """
    _without_additions(module)
    # Execution updates the mapping of annotations in place, so the file gets a copy, and stock's is kept.
    annotations = vars(module).get("__annotations__")
    if annotations is not None:
        vars(module)["__annotations__"] = dict(annotations)
    path = loader.path
    recorder = overlay.Recorder(module, left_out)
    if annotations is not None:
        recorder.before["__annotations__"] = annotations
    patch = Patch(module, recorder.before)
    if begun is not None:
        begun(patch)
    try:
        with recorder:
            exec(loader.get_code(module.__name__), vars(module))
        added = _collect(recorder, path)
        _check_kinds(recorder, path, always)
        restore(module, recorder.before)
        vars(module).update(added)
        _additions[module.__name__] = module, added
        _put(patch, recorder, always, left_out)
        for new in [*added.values(), *recorder.marked.values()]:
            if isinstance(new, type) and new.__module__ == module.__name__:
                _sources.register(new, path)
        patch.settle()
    except BaseException:
        patch.undo()
        raise
    return patch


def _put(patch: Patch, recorder: overlay.Recorder, always: frozenset[str], left_out: frozenset[str]) -> None:
    for symbol, new in recorder.marked.items():
        old = overlay.lookup(recorder.before, symbol)
        target = f"{patch.module.__name__}:{symbol}"
        if target in left_out:
            continue
        if target in always:
            patch.put(symbol, old, new)
        else:
            patch.switch(symbol, getattr(old, "__func__", old), getattr(new, "__func__", new))


def replace_loaded(module: ModuleType, loader: OverlayLoader, begun: Callable[[Patch], object] | None = None) -> Patch:
    """Replace the contents of a module that others have imported; the module object stays.

    `begun` gets the patch before anything is changed. Raises whatever the file raises; the module is then as it was.
    """
    before = Snapshot(vars(module))
    namespace = vars(module)
    spec = getattr(module, "__spec__", None)
    kept = {name: before[name] for name in ("__name__", "__package__", "__spec__", "__builtins__") if name in before}
    patch = Patch(module, before, (spec.origin, spec.loader) if spec is not None and spec.origin else None)
    if begun is not None:
        begun(patch)
    try:
        namespace.clear()
        namespace.update(kept, __file__=loader.path, __loader__=loader)
        exec(loader.get_code(module.__name__), namespace)
        if spec is not None and spec.origin is not None:
            spec.origin, spec.loader = loader.path, loader
        for name, old in before.items():
            new = namespace.get(name, old)
            own = isinstance(old, (type, FunctionType)) and old.__module__ == module.__name__
            if own and new is not old:
                patch.put(name, old, new)
        patch.settle()
    except BaseException:
        patch.undo()
        raise
    return patch
