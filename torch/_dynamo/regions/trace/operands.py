"""The operands of a body: the origin of each in the traced call, and its proxy in another call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.fx
from torch._dynamo.regions.keys import node_storages, object_key, offset_of, value_storages
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.size_history import SIZE_HISTORY
from torch._dynamo.regions.source_names import name_of_source
from torch._dynamo.regions.trace.fingerprint import Arguments
from torch._dynamo.regions.trace.objects import of_class
from torch._dynamo.regions.trace.state import value_key
from torch._dynamo.regions.trace.substitution import GuardActions
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._guards import InvokeSubgraphReuseEntry, Source
from torch._higher_order_ops.metadata_keys import number as number_of
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.offset_facts import seeing_offsets
from torch.utils._sympy.symbol import SymT, symbol_is_type


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


Node = torch.fx.Node


class Input(NamedTuple):
    """The origin of a body's operand: ``leaf``, ``source``, ``symbol``, ``made`` or ``held``; and its ``key``."""

    leaf: int | None = None
    source: Source | None = None
    symbol: Any = None
    # Of an opaque object that the program makes for an operator: class, arguments, and their sources (None: constants).
    made: tuple[Any, tuple[Any, ...], tuple[Source | None, ...]] | None = None
    # Tracker of a tensor that the frame has put where each call finds it; see Note [Pending state that stays].
    held: Any = None
    # Key of the value's metadata.
    key: Hashable = None


def inputs_from(
    tx: InstructionTranslatorBase, arguments: Arguments, operands: list[Node], held: dict[Node, VariableTracker]
) -> list[Input]:
    """The origin of each of a call's operands.  ``held``: node -> tensor in what is pending."""
    given: dict[Node, int] = {}
    for i, leaf in enumerate(arguments.leaves):
        tracker = leaf.tracker.unwrap()
        if issubclass(type(tracker), LazyVariableTracker):
            continue  # still lazy: reading its proxy would add a guard on what the program does not read
        proxy = getattr(tracker, "proxy", None)
        if isinstance(proxy, torch.fx.Proxy):
            given.setdefault(proxy.node, i)
    return [Input(held=held[node]) if node in held else _input(tx, node, given) for node in operands]


def float_source(node: Node) -> Source | None:
    """The source of the float that ``node`` reads off an input of the graph; None for other nodes.

    See Note [A symbolic float is read outside of its region] in floats.py.
    """
    if node.op != "call_method" or node.target != "item" or not isinstance(node.args[0], Node):
        return None
    passed: Any = node.args[0].meta.get("grapharg")
    value = node.meta.get("example_value")
    if float_symbol(value) is None or not getattr(passed, "pass_arg_as_tensor", False):
        return None
    return passed.source  # type: ignore[no-any-return]


def float_symbol(value: Any) -> Any:
    """The symbol of a number that is a float of the program; None if the number is something else."""
    if not isinstance(value, torch.SymFloat):
        return None
    expr = value.node._expr  # as it was made, without what the shape environment has put in its place
    return expr if expr.is_Symbol and symbol_is_type(expr, SymT.FLOAT) else None


def _operand_key(value: Any) -> Hashable:
    """Key of an operand. A symbolic float may be any number; what is guarded of it is compared apart."""
    return "a float" if isinstance(value, torch.SymFloat) else value_key(value)


def _input(tx: InstructionTranslatorBase, node: Node, given: dict[Node, int]) -> Input:
    value = node.meta.get("example_value")
    if node in given:
        return Input(leaf=given[node], key=_operand_key(value))
    if (source := float_source(node)) is not None:
        return Input(source=source, key=_operand_key(value))
    if isinstance(value, torch.SymInt):
        # Equal expressions are one value, which each call finds where the frame binds the symbol. A number behind an
        # argument has a symbol of its own in each call; ``save`` refuses such a call.
        for expression in (value.node._expr, value.node.expr):
            bound = tx.output.current_tracer.bound_symbols.get(expression)
            if isinstance(bound, torch.fx.Proxy) and bound.node is node:
                return Input(symbol=expression)
    source = getattr(node.meta.get("grapharg"), "source", None)
    if source is not None and (made := tx.output.synthetic_source_ctor_info.get(source)) is not None:
        made_of, given_to, sources = made
        return Input(made=(made_of, given_to, sources or (None,) * len(given_to)), key=value_key(value))
    if source is None or not (isinstance(value, torch.Tensor) or object_key(value)):
        raise CannotReuse(ReuseMissReason.UNKNOWN_CAPTURE, f"{node} is used")
    return Input(source=source, key=value_key(value))


def value_at(at: Callable[[Source], Any], source: Source) -> Any:
    try:
        return at(source)
    except Exception as e:
        raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{source.name}: {e}") from None


def build_as_traced(
    tx: InstructionTranslatorBase, actions: GuardActions, source: Source, **options: bool
) -> VariableTracker:
    """The tracker that tracing the call would build of the value at the substituted ``source``.

    Behind an object that the frame knows by another source, tracing goes on at that source, where a number may have
    a symbol.
    """
    from torch._dynamo.variables.builder import VariableBuilder

    binding = actions.substitution.binding(source)
    if binding.tracker is not None and not (options and isinstance(binding.tracker, LazyVariableTracker)):
        return binding.tracker
    value = value_at(actions.value, source)
    with SIZE_HISTORY.of(tx.output).as_asked_for(source.name):
        binding.tracker = VariableBuilder(tx, actions.where(actions.look(source)), **options)(value)
    return binding.tracker


def operands_of(
    tx: InstructionTranslatorBase,
    arguments: Arguments,
    entry: InvokeSubgraphReuseEntry,
    actions: GuardActions,
) -> list[Any]:
    """The proxies of the body's operands in this call.  Builds the trackers that tracing the call would build."""
    proxies = []
    for origin in entry.inputs:
        if origin.symbol is not None:
            proxies.append(proxy_of_symbol(tx, actions, origin.symbol))
            continue
        if origin.held is not None:
            proxies.append(origin.held.as_proxy())
            continue
        if origin.made is not None:
            proxies.append(_made_anew(tx, actions, *origin.made))
            continue
        if origin.leaf is not None:
            tracker = arguments.leaves[origin.leaf].tracker.realize()
        else:
            tracker = build_as_traced(tx, actions, origin.source)
        proxy = tracker.as_proxy()
        key = _operand_key(proxy.node.meta.get("example_value")) if isinstance(proxy, torch.fx.Proxy) else None
        if origin.key != (actions.symbols.renamed(key) if actions.symbols else key):
            raise CannotReuse(ReuseMissReason.CAPTURE_DIFFERS, name_of(tracker))
        proxies.append(proxy)
    found = sharing([p.node for p in proxies], entry.sharing.exact)
    if entry.sharing != (found.renamed(actions.symbols) if actions.symbols else found):
        raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, "operands of the body")
    return proxies


def _made_anew(
    tx: InstructionTranslatorBase,
    actions: GuardActions,
    made_of: Any,
    arguments: tuple[Any, ...],
    sources: Iterable[Source | None],
) -> Any:
    """The proxy of an opaque object that is constructed like the traced call's, from this call's arguments."""
    new = [None if source is None else actions.substitution(source) for source in sources]
    values = [
        a if source is None else value_at(actions.value, source) for a, source in zip(arguments, sources, strict=True)
    ]
    return tx.output.synthetic_graph_input(made_of, tuple(values), ctor_arg_sources=tuple(new)).as_proxy()


def proxy_of_symbol(tx: InstructionTranslatorBase, actions: GuardActions, expression: Any) -> Any:
    """The proxy of what this call has in the place of the traced call's ``expression``."""
    expression = actions.symbols.symbol(expression) if actions.symbols else expression
    bound = tx.output.current_tracer.bound_symbols.get(expression)
    if not isinstance(bound, torch.fx.Proxy):
        raise CannotReuse(ReuseMissReason.CAPTURE_DIFFERS, str(expression))
    return bound


class Sharing(NamedTuple):
    """Which operands are the same, which are one tensor to the program, and how they lie in storages they share."""

    names: tuple[tuple[int, ...], ...]
    # Storage offsets: of the operands in ``exact``; of others, from the first operand in the same storage.
    offsets: tuple[Hashable, ...]
    exact: frozenset[int]

    def renamed(self, symbols: Any) -> Sharing:
        """The same in the symbols of the traced call."""
        return self._replace(offsets=symbols.renamed(self.offsets))


def sharing(nodes: list[Node], exact: frozenset[int]) -> Sharing:
    """``exact``: the indices of operands whose storage offsets the call sees.

    See Note [A body does not see storage offsets] in torch/fx/offset_facts.py.
    """
    number: dict[Any, int] = {}
    names, offsets = [], []
    first: dict[int, Any] = {}  # storage -> the first operand in it
    for index, node in enumerate(nodes):
        value = node.meta.get("example_value")
        storages = value_storages(value)
        tensor = ("tensor", id(value)) if isinstance(value, torch.Tensor) else None
        names.append(tuple(number.setdefault(name, len(number)) for name in (node, tensor, *storages)))
        offset = None
        if index in exact:
            offset = offset_of(value)
        elif type(value) is FakeTensor and (other := first.setdefault(storages[0], value)) is not value:
            offset = number_of(value.storage_offset() - other.storage_offset())
        offsets.append(offset)
    return Sharing(tuple(names), tuple(offsets), exact)


def seen_offsets(call_nodes: list[Node], operands: list[Node], modules: Any) -> frozenset[int]:
    """Indices of the operands whose storage offsets the operators of a call see."""
    seen = {s for node in seeing_offsets(call_nodes, modules) for o in node.all_input_nodes for s in node_storages(o)}
    return frozenset(i for i, node in enumerate(operands) if seen and not seen.isdisjoint(node_storages(node)))


def name_of(tracker: VariableTracker) -> str:
    """The name of the source of ``tracker``, or the class of its value, for messages."""
    return name_of_source(tracker.source) or f"a {_class_name(tracker)}"


def description(tracker: VariableTracker) -> str:
    """The name of the source of ``tracker``, if any, and the class of its value, for messages."""
    name, kind = name_of_source(tracker.source), f"a {_class_name(tracker)}"
    return f"{name} ({kind})" if name else kind


def _class_name(tracker: VariableTracker) -> str:
    """The name of the class of the program's value, or of the tracker's class where Dynamo does not say."""
    known = tracker.unwrap()
    if issubclass(type(known), LazyVariableTracker):
        return "value"  # asking it for its class would build it
    try:
        return str(of_class(known.python_type(), "__name__"))
    except Exception:  # what a tracker raises that has no class is its own
        return type(known).__name__
