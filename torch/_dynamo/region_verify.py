"""Verifies a reuse: the call was traced after all, and must have come out as the entry foretold.

On with ``torch._dynamo.config.verify_region_reuse``.
"""

from __future__ import annotations

import difflib
import types
from typing import TYPE_CHECKING, Any

import torch.fx
from torch._dynamo.region_identity import NodeIdentity, Unkeyable
from torch._dynamo.region_reuse import transported_guards, void_maker
from torch._dynamo.region_transport import Fate, Transport, resolver
from torch._guards import Source


if TYPE_CHECKING:
    from torch._dynamo.region_arguments import CannotReuse
    from torch._dynamo.region_reuse import Match
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import InvokeSubgraphReuseEntry


class RegionReuseError(AssertionError):
    """A body would have been reused for a call that is another when it is traced."""


def verify(
    tx: InstructionTranslatorBase,
    match: Match,
    traced: InvokeSubgraphReuseEntry | None,
    refused: CannotReuse | None,
    before: set[tuple[str, str]],
) -> None:
    """Raises RegionReuseError, with a diff, unless the call that was traced is the one that ``match`` foretold.

    ``before`` are the guards that there were before the call: a read set has all of them that are behind an argument,
    whether or not they have to do with the call.
    """
    from torch._dynamo.utils import counters

    name = match.entry.call.function
    if traced is None:
        raise RegionReuseError(f"{name}: a call that an entry was found for cannot be reused itself: {refused}")
    modules = tx.output.nn_modules
    old, new = (_operators(c.nodes, c.operands, modules) for c in (match.entry.call, traced.call))
    _same(f"{name}: operators", old, new)
    _same(f"{name}: results", list(map(str, match.entry.results)), list(map(str, traced.results)))
    operands = [_operand(tx, proxy.node) for proxy in match.operands]
    _same(f"{name}: operands", operands, [_operand(tx, node) for node in traced.call.operands])
    transport = match.fates.transport
    _same(f"{name}: recipe", [_said(match.entry.recipe.says, transport)], [_said(traced.recipe.says)])
    effects = [_said(e.says, transport) for e in match.entry.effects]
    _same(f"{name}: side effects", effects, [_said(e.says) for e in traced.effects])
    condition, other = match.entry.condition, traced.condition
    pins = sorted(_said(pin, transport) for pin in condition.pins)
    _same(f"{name}: constants that were looked at", pins, sorted(map(_said, other.pins)))
    indices = [(s, make) for s, makers in condition.indices.items() for make in makers]
    unchanged = [(s, make) for s, _, _, make in condition.guards if match.fates(s) is Fate.UNCHANGED]
    unchanged += [(s, make) for s, make in indices if match.fates(s) is Fate.UNCHANGED]
    # Which objects are one is compared as identity, and again where the tensors are.
    guards = [(s.name, _kind(make)) for s, make in transported_guards(match) + unchanged]
    foretold = {g for g in guards if not g[1].startswith("DUPLICATE_INPUT")}
    void = void_maker()
    found = {(s.name, _kind(make)) for s, _, _, make in other.guards if make is not void}
    found |= {(s.name, _kind(make)) for s, makers in other.indices.items() for make in makers}
    found -= before - foretold
    # What is behind an object that is known by another source is guarded there, and not behind an argument.
    found |= foretold & guards_now(tx)
    # A class may be come by through each of its objects: a guard on a function of it is one, whatever the way.
    sources = {s.name: s for s, *_ in (*transported_guards(match), *unchanged, *other.guards)}
    ways = [_functions(tx, guards, sources) for guards in (foretold - found, found - foretold)]
    foretold, found = (
        {g for g in mine if ways[i].get(g) not in ways[1 - i].values()} for i, mine in enumerate((foretold, found))
    )
    _same(f"{name}: guards", sorted(map(str, foretold)), sorted(map(str, found)))
    counters["regions"]["verified"] += 1


def _functions(
    tx: InstructionTranslatorBase, guards: set[tuple[str, str]], sources: dict[str, Source]
) -> dict[tuple[str, str], object]:
    """Of guards on functions of classes: which function, and the kind."""
    resolve = resolver(tx)
    of_classes = {g: resolve(sources[g[0]]) for g in guards if g[0] in sources and "__mro__" in g[0]}
    return {g: (id(value), g[1]) for g, value in of_classes.items() if isinstance(value, types.FunctionType)}


def _operand(tx: InstructionTranslatorBase, node: torch.fx.Node) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    made = tx.output.synthetic_source_ctor_info.get(source) if source is not None else None
    if made is None:
        return node.name
    # Made anew for each call, under a name of its own.
    made_of, arguments, sources = made
    return f"{made_of.__name__}{arguments} of {[s and s.name for s in sources or ()]}"


def guards_now(tx: InstructionTranslatorBase) -> set[tuple[str, str]]:
    """Source and kind of each guard that the frame has so far."""
    return {(guard.name, _kind(guard.create_fn)) for guard in tx.output.guards}


def _said(says: Any, transport: Transport | None = None) -> str:
    """What a recipe or an expression says, with its sources as they are in another call."""
    if isinstance(says, Source):
        return (transport(says) if transport is not None else says).name
    if isinstance(says, tuple):
        kind = type(says).__name__ if type(says) is not tuple else ""
        return f"{kind}({', '.join(_said(part, transport) for part in says)})"
    return getattr(says, "__qualname__", None) or repr(says)


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
            if node.op == "placeholder":
                key: Any = ("placeholder", identity.value_key(node.meta.get("example_value")))
            elif isinstance(module, torch.fx.GraphModule):
                key = _operators(list(module.graph.nodes), [], modules)
            else:
                key = identity.key(node, None)
        except Unkeyable as e:
            key = (node.op, str(node.target), str(e))
        lines.append(f"v{i} = {key} {wiring}")
    return lines
