"""The options of regions, added to ``torch._dynamo.config`` when Dynamo is imported."""

from __future__ import annotations

from typing import Any

from torch.utils._config_module import Config, _ConfigEntry

from torch._dynamo import config


def _add(name: str, default: Any, env: str | None = None) -> None:
    """Adds an option to stock's."""
    names = [env] if env is not None else None
    entry = _ConfigEntry(Config(default=default, value_type=type(default), env_name_default=names), name)
    config._config[name] = entry


# Trace each call of a region that could be stamped out, and raise when it is another than foretold.
_add("verify_region_reuse", False, "TORCH_REGIONS_VERIFY")
