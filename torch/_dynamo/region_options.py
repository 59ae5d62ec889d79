"""The options of regions, added to ``torch._dynamo.config`` when Dynamo is imported."""

from __future__ import annotations

from typing import Any

from torch._dynamo import config
from torch.utils._config_module import Config, _ConfigEntry


_VERIFY = "verify_region_reuse"


def _add(name: str, default: Any, env: str) -> None:
    """Adds an option to stock's; the environment variable ``env`` sets its default."""
    options: dict[str, _ConfigEntry] = vars(config)["_config"]
    options[name] = _ConfigEntry(Config(default=default, value_type=type(default), env_name_default=[env]), name)


_add(_VERIFY, False, "TORCH_REGIONS_VERIFY")


def verifying() -> bool:
    """Whether each call of a region that could be stamped out is traced, and must be what was foretold."""
    return bool(getattr(config, _VERIFY))
