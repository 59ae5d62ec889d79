"""Specs and loaders for the modules that the overlay patches."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any

import torch_regions._dynamo_rules as _dynamo_rules
import torch_regions._extend as _extend
from torch_regions._errors import OverlayError
from torch_regions._files import other_spec
from torch_regions._loader import OverlayLoader


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from torch_regions._files import Finder
    from torch_regions._patch import Patch


class StockLoader(SourceFileLoader):
    """Executes the stock module, then the overlay's extension, if any, then wraps what _dynamo_rules names."""

    def __init__(self, name: str, stock_path: str, extension: str | None, finder: Finder) -> None:
        super().__init__(name, stock_path)
        self.extension = extension
        self.finder = finder

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        after_stock(module, self.extension, self.finder)


class AroundLoader:
    """Runs another import hook's loader of a stock module, then patches the module as StockLoader does."""

    def __init__(self, inner: Any, extension: str | None, finder: Finder) -> None:
        self.inner = inner
        self.extension = extension
        self.finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        after_stock(module, self.extension, self.finder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def after_stock(
    module: ModuleType, extension: str | None, finder: Finder, begun: Callable[[Patch], object] | None = None
) -> None:
    """Patch a stock module that was executed. `begun` gets the patch, if there is one, before anything is changed.

    Raises OverlayError when the extension does not fit.
    """
    if extension is not None:
        guarded(_extend.extend, module, extension, finder, finder.always, finder.left_out, begun)
    _dynamo_rules.apply(module, finder.files)
    finder.applied[module.__name__] = module


def replace_and_apply(module: ModuleType, path: str, finder: Finder, begun: Callable[[Patch], object]) -> None:
    """Replace a whole module that is loaded already. `begun` gets the patch before anything is changed.

    Raises OverlayError when the file fails.
    """
    guarded(_extend.replace_loaded, module, path, finder, begun)
    _dynamo_rules.apply(module, finder.files)
    finder.applied[module.__name__] = module


def guarded(apply: Any, module: ModuleType, path: str, finder: Finder, *more: Any) -> Any:
    """Call `apply`. What the overlay file raises becomes an OverlayError that names the file."""
    try:
        return apply(module, OverlayLoader(module.__name__, path, finder.codes), *more)
    except OverlayError:
        raise
    except Exception as error:
        raise OverlayError(
            f"torch-regions: {path} failed while it was loaded into {module.__name__}: {error!r}. "
            "TORCH_REGIONS=0 goes without the overlay."
        ) from error


def spec_for(
    name: str,
    path: str | None,
    finder: Finder,
    search: Sequence[str] | None,
    target: ModuleType | None,
) -> ModuleSpec | None:
    """The spec of a module: the overlay's file for a whole module, else stock's file with the extension."""
    decision = finder.decision
    modules = decision.modules if decision is not None else finder.pending_modules
    if path is not None and name in modules:
        package = [os.path.dirname(path)] if os.path.basename(path) == "__init__.py" else None
        loader = OverlayLoader(name, path, finder.codes)
        return importlib.util.spec_from_file_location(name, path, loader=loader, submodule_search_locations=package)
    spec = other_spec(name, search, target)
    if spec is None or (path is None and name not in _dynamo_rules.MODULES):
        return spec
    if type(spec.loader) is SourceFileLoader:
        spec.loader = StockLoader(name, spec.loader.path, path, finder)
    elif hasattr(spec.loader, "exec_module"):
        spec.loader = AroundLoader(spec.loader, path, finder)  # type: ignore[assignment]
    return spec


def left_behind(finder: Finder) -> list[str]:
    """Modules that are loaded but not patched, because another import hook came before the finder."""
    found = []
    for name in finder.files.keys() | _dynamo_rules.MODULES.keys():
        module = sys.modules.get(name)
        if module is None or finder.applied.get(name) is module:
            continue
        begun = getattr(getattr(module, "__spec__", None), "_initializing", False)
        if not begun and getattr(module, "__file__", None) != finder.files.get(name):
            found.append(name)
    return sorted(found)


def patch_loaded(name: str, finder: Finder, decision: Any) -> None:
    """Patch a loaded module. Raises OverlayError when the file does not fit."""
    module, path = sys.modules[name], finder.files.get(name)
    begun = decision.patches.append
    if name in decision.modules and path is not None:
        replace_and_apply(module, path, finder, begun)
    else:
        after_stock(module, path, finder, begun)
