"""Overlay of torch.utils._config_module: an ordinary option is read in one step.

Stock asks six questions in four calls whenever an option is read, and guards alone read one for each dict on the way to
a parameter.
"""

from __future__ import annotations

from typing import Any

from torch.utils._config_module import _UNSET_SENTINEL

from torch_regions.overlay import replaces, stock


_ORDINARY = frozenset({bool, int, float, str, type(None)})


@replaces("ConfigModule.__getattr__")
def __getattr__(self: Any, name: str) -> Any:
    entry = self._config.get(name)
    if (
        entry is not None
        and entry.alias is None
        and entry.env_value_force is _UNSET_SENTINEL
        and not (entry.hide or entry.deprecated)
    ):
        value = entry.user_override.get()
        if value is not _UNSET_SENTINEL:
            return value
        if (
            entry.env_value_default is _UNSET_SENTINEL
            and entry.justknob is None
            and type(entry.default) in _ORDINARY  # others are copied before they are given out
        ):
            return entry.default
    return stock("torch.utils._config_module:ConfigModule.__getattr__")(self, name)
