"""Verifies a reuse: the call was traced after all, and must have come out as the entry foretold.

On with ``torch._dynamo.config.verify_region_reuse``.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import torch.fx

from torch._dynamo.region_identity import NodeIdentity, Unkeyable
from torch._dynamo.region_reuse import transported_guards
from torch._dynamo.region_transport import Fate


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase

    from torch._dynamo.region_arguments import CannotReuse
    from torch._dynamo.region_reuse import Match
    from torch._guards import InvokeSubgraphReuseEntry


class RegionReuseError(AssertionError):
    """A body would have been reused for a call that is another when it is traced."""


def verify(
    tx: InstructionTranslatorBase,
    match: Match,
    traced: InvokeSubgraphReuseEntry | None,
    refused: CannotReuse | None,
) -> None:
    """Raises RegionReuseError, with a diff, unless the call that was traced is the one that ``match`` foretold."""
    from torch._dynamo.utils import counters

    name = match.entry.call.function
    if traced is None:
        raise RegionReuseError(f"{name}: a call that an entry was found for cannot be reused itself: {refused}")
    modules = tx.output.nn_modules
    old, new = (_operators(c.nodes, c.operands, modules) for c in (match.entry.call, traced.call))
    _same(f"{name}: operators", old, new)
    _same(f"{name}: results", list(map(str, match.entry.results)), list(map(str, traced.results)))
    _same(f"{name}: operands", [p.node.name for p in match.operands], [n.name for n in traced.call.operands])
    unchanged = [(s, make) for s, _, _, make in match.entry.condition.guards if match.fates(s) is Fate.UNCHANGED]
    # Which objects are one is compared as identity, and again where the tensors are.
    guards = [(s.name, _kind(make)) for s, make in transported_guards(tx, match) + unchanged]
    foretold = sorted({g for g in guards if not g[1].startswith("DUPLICATE_INPUT")})
    found = sorted({(s.name, _kind(make)) for s, _, _, make in traced.condition.guards})
    _same(f"{name}: guards", list(map(str, foretold)), list(map(str, found)))
    counters["regions"]["verified"] += 1


def _kind(make: Any) -> str:
    bound = getattr(make, "keywords", {})
    return getattr(make, "func", make).__name__ + "".join(f" {k}={v!r}" for k, v in bound.items())


def _same(what: str, foretold: list[str], found: list[str]) -> None:
    if foretold != found:
        diff = "\n".join(difflib.unified_diff(foretold, found, "foretold", "traced", lineterm=""))
        raise RegionReuseError(f"{what} differ from what the reused call would have had:\n{diff}")


def _operators(nodes: list[torch.fx.Node], operands: list[torch.fx.Node], modules: Any) -> list[str]:
    """One line an operator: what it is and how it is wired, without names."""
    number: dict[torch.fx.Node, str] = {node: f"in{i}" for i, node in enumerate(operands)}
    identity = NodeIdentity()
    lines = []
    for i, node in enumerate(nodes):
        number[node] = f"v{i}"
        wiring = [number[o] for o in node.all_input_nodes]
        module = modules.get(node.target) if node.op == "get_attr" else None
        try:
            if isinstance(module, torch.fx.GraphModule):
                key: Any = _operators(list(module.graph.nodes), [], modules)
            else:
                key = identity.key(node, None)
        except Unkeyable as e:
            key = (node.op, str(node.target), str(e))
        lines.append(f"v{i} = {key} {wiring}")
    return lines
