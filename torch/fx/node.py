"""Overlay of torch.fx.node: what a graph finds a node by is updated when that changes, and not for each attribute."""

from __future__ import annotations

from typing import Any

from torch_regions.overlay import replaces, stock


# A graph finds its nodes by ``op`` and ``target``; what else stock does is for ``name``.
_LOOKED_AT = frozenset({"op", "target", "name", "graph"})


@replaces("Node.__setattr__")
def __setattr__(self: Any, name: str, value: Any) -> None:
    if name in _LOOKED_AT:
        stock("torch.fx.node:Node.__setattr__")(self, name, value)
    else:
        object.__setattr__(self, name, value)
