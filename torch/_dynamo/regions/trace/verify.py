"""Verifies a reuse: traces the call all the same, and compares the result with what the entry expects.

On under ``torch._dynamo.config.verify_region_reuse``.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.fx
from torch._dynamo.regions.frame import PerFrame
from torch._dynamo.regions.keys import NodeIdentity, Unkeyable
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.trace.expressions import Applied, BindingValue, Expression, SourceValue
from torch._dynamo.regions.trace.floats import guards_to_make
from torch._dynamo.regions.trace.guard_facts import maker_key
from torch._dynamo.regions.trace.lookup import substituted_guards, to_be_tracked, void_maker
from torch._dynamo.regions.trace.operands import name_of
from torch._dynamo.regions.trace.recipe import metadata_of
from torch._dynamo.regions.trace.substitution import resolver
from torch._dynamo.regions.trace.symbol_guards import said_of_symbols, without_implied
from torch._dynamo.source import SyntheticLocalSource
from torch._dynamo.variables.base import AttributeMutationExisting, ValueMutationExisting
from torch._guards import ChainedSource, Source


if TYPE_CHECKING:
    from torch._dynamo.regions.trace.fingerprint import Arguments
    from torch._dynamo.regions.trace.lookup import Match
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import InvokeSubgraphReuseEntry


_ADDRESS = re.compile(" at 0x[0-9a-f]+")
_WORD = re.compile(r"\w+")
_FLOAT = re.compile(r"\bzf\d+")
# The other source of a guard that two sources are one object.
_ALIAS = re.compile("DUPLICATE_INPUT source_b=(.*)")
# entry -> operators of its call, and metadata of its results, as of ``save``; the frame may change both afterwards.
_SAVED: PerFrame[dict[Any, tuple[list[str], list[str]]]] = PerFrame(lambda _: {})


class RegionReuseError(AssertionError):
    """A body would have been reused for a call that differs from it when traced."""


class FrameState(NamedTuple):
    """What a call may add to a frame, besides the graph."""

    # Source and kind of each guard.
    guards: set[tuple[str, str]]
    # Sources of the existing objects that Dynamo tracks.
    tracked: set[str]
    # Guards, by text, and symbols of the shape environment.
    symbols: tuple[dict[str, Any], list[str]]


def frame_state(tx: InstructionTranslatorBase) -> FrameState:
    """The current FrameState."""
    void = void_maker()
    guards = {
        _guard_key(tx, guard.originating_source, guard.create_fn)
        for guard in tx.output.guards
        if guard.create_fn is not void
    }
    existing = (AttributeMutationExisting, ValueMutationExisting)
    known = tx.output.side_effects.id_to_variable.values()
    # An object that the program makes for an operator has a new source in each call.
    sourced = (t for t in known if t.source is not None and type(t.source) is not SyntheticLocalSource)
    tracked = {name_of(t) for t in sourced if isinstance(t.mutation_type, existing)}
    env = tx.output.shape_env
    symbols = said_of_symbols(g.expr for g in env.guards), list(map(str, env.backed_var_to_val))
    return FrameState(guards, tracked, symbols)


def expected_state(tx: InstructionTranslatorBase, match: Match, arguments: Arguments) -> tuple[FrameState, FrameState]:
    """The current FrameState, and the one after stamping out ``match``."""
    for held in arguments.lists:
        # Appending to a deferred list realizes it, in a stamped call too.
        held.bottom.realize()
    before = frame_state(tx)
    guards = {_guard_key(tx, source, make) for source, make in substituted_guards(match)}
    tracked = {match.actions.where(binding).name for binding in to_be_tracked(match)}
    env = tx.output.shape_env
    made = (e for e in guards_to_make(match.entry.condition, match.actions) if env.replace(e) not in (True, False))
    of_symbols = said_of_symbols([*(g.expr for g in env.guards), *made]), before.symbols[1]
    return before, FrameState(before.guards | guards, before.tracked | tracked, of_symbols)


def verify(
    tx: InstructionTranslatorBase,
    match: Match,
    traced: InvokeSubgraphReuseEntry | None,
    refused: CannotReuse | None,
    states: tuple[FrameState, FrameState],
) -> None:
    """Raises RegionReuseError, with a diff, unless the traced call is what ``match`` expects.

    ``states``: what ``expected_state`` returned before the call was traced.
    """
    from torch._dynamo.utils import counters

    name = match.entry.call.function
    if traced is None:
        if _is_of_the_frame(tx, refused, states[1]):
            return
        raise RegionReuseError(f"{name}: a call that an entry was found for cannot be reused itself: {refused}")
    # If verification was off at ``save``, nothing was noted.
    saved = _SAVED.of(tx.output).get(match.entry.main or match.entry) or _seen_of(tx, match.entry)
    for what, *lines in zip(("operators", "metadata of results"), saved, _seen_of(tx, traced), strict=True):
        _same(f"{name}: {what}", *_with_one_set_of_symbols(tx, match, *lines))
    _same(f"{name}: results", list(map(str, match.entry.results)), list(map(str, traced.results)))
    operands = [_operand(tx, proxy.node) for proxy in match.operands]
    _same(f"{name}: operands", operands, [_operand(tx, node) for node in traced.call.operands])
    substitution = match.actions.substitution
    recipe = [_said(match.entry.recipe.says, substitution)], [_said(traced.recipe.says)]
    effects = [_said(e.says, substitution) for e in match.entry.effects], [_said(e.says) for e in traced.effects]
    for what, said in (("recipe", recipe), ("side effects", effects)):
        _same(f"{name}: {what}", *_with_one_set_of_symbols(tx, match, *said))
    _same(f"{name}: changes that were read", *(_changes_read(each) for each in (match.entry, traced)))
    _same(f"{name}: constants that were looked at", *_looked_at(tx, match, traced))
    (before, expected), found = states, frame_state(tx)
    for what in ("guards", "tracked"):
        old, new = (getattr(s, what) - getattr(before, what) for s in (expected, found))
        if old != new:
            old, new = (_with_one_name(each, s.guards) for each, s in ((old, expected), (new, found)))
        _same(f"{name}: {what}", sorted(map(str, old)), sorted(map(str, new)))
    said = without_implied(tx.output.shape_env, expected.symbols[0], found.symbols[0])
    for old, new in ((expected.symbols[0], said), (expected.symbols[1], found.symbols[1])):
        _same(f"{name}: symbols", sorted(old), sorted(new))
    counters["regions"]["verified"] += 1


def _changes_read(entry: InvokeSubgraphReuseEntry) -> list[str]:
    return sorted(map(name_of, entry.condition.pending.objects))


def _is_of_the_frame(tx: InstructionTranslatorBase, refused: CannotReuse | None, expected: FrameState) -> bool:
    """Whether the call is ``refused`` for a guard that it did not make.

    The frame may have guarded a shared object behind this call's argument, and behind no argument of the earlier call,
    or a symbolic float of a layer that it calls again.
    """
    reasons = (ReuseMissReason.UNSUPPORTED_GUARD, ReuseMissReason.SYMBOLIC_NUMBER)
    found = frame_state(tx)
    if refused is None or refused.reason not in reasons or not found.guards <= expected.guards:
        return False
    return all(set(new) <= set(old) for new, old in zip(found.symbols, expected.symbols, strict=True))


def _looked_at(
    tx: InstructionTranslatorBase, match: Match, traced: InvokeSubgraphReuseEntry
) -> tuple[list[str], list[str]]:
    """The constants that only the earlier call, and that only the traced one has looked at.

    Looking for a match reads an element at an index, or the operands of what the call has looked at.  Then the traced
    call looks at these, which is to know more than the earlier call did.  So is to read a number itself: only a call
    that is inside no other region can ask for nothing but a comparison.
    """
    where = match.actions.behind_known  # an object that all layers share is read where the frame knows it
    read_before = {where(source).name for source in match.entry.condition.sources}
    read_now = {source.name for source in traced.condition.sources}
    old = [(e, _said((e, key), where)) for e, key in _specialized(tx, match.entry)]
    new = [(e, _said((e, key))) for e, key in _specialized(tx, traced)]
    read = {_said(path.index, where) for path in match.entry.condition.paths}  # type: ignore[attr-defined]
    read.update(_said(part, where) for e, _ in old for part in _operands_in(e))
    expressions = {_said(e) for e, _ in new}

    def is_known(expression: Any) -> bool:
        return _said(expression, where) in expressions or _is_in(expression, read_now, where)

    def was_known(expression: Any) -> bool:
        return _is_in(expression, read_before)

    found, texts = {text for _, text in new}, {text for _, text in old}
    gone = sorted(text for e, text in old if text not in found and not _follows(e, is_known))
    more = ((_said(e), text) for e, text in new if text not in texts and not _follows(e, was_known))
    return gone, sorted(text for said, text in more if said not in read)


def _follows(expression: Any, is_known: Callable[[Any], bool]) -> bool:
    """Whether the value of ``expression`` follows from what ``is_known``."""
    if is_known(expression):
        return True
    if not isinstance(expression, Applied):
        return False
    return all(_follows(part, is_known) for part in filter(_is_expression, expression.parts))


def _is_in(expression: Any, names: set[str], where: Callable[[Source], Source] | None = None) -> bool:
    """Whether ``expression`` is the constant at a source that ``names`` has."""
    return isinstance(expression, SourceValue) and _said(expression.source, where) in names


def _is_expression(part: Any) -> bool:
    return isinstance(part, Expression)


def _operands_in(expression: Any) -> Iterator[Any]:
    for part in filter(_is_expression, expression.parts) if isinstance(expression, Applied) else ():
        yield part
        yield from _operands_in(part)


def _specialized(tx: InstructionTranslatorBase, entry: InvokeSubgraphReuseEntry) -> list[Any]:
    """The specialized constants, without functions of globals that the frame has not bound.

    Such a global is guarded whether it was deferred or not, and its guard is compared.  It is deferred only if an
    earlier call has realized the other operands.
    """
    bound_by_frame = tx.output.root_tx.symbolic_globals
    return [each for each in entry.condition.specialized if not _is_of_globals(each[0], bound_by_frame)]


def _is_of_globals(expression: Any, bound_by_frame: dict[str, Any]) -> bool:
    if isinstance(expression, Applied):
        return all(_is_of_globals(part, bound_by_frame) for part in expression.parts)
    if isinstance(expression, BindingValue):
        return isinstance(expression.where, Source) and expression.name not in bound_by_frame
    return not isinstance(expression, tuple)


def _operand(tx: InstructionTranslatorBase, node: torch.fx.Node) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    made = tx.output.synthetic_source_ctor_info.get(source) if source is not None else None
    if made is None:
        return node.name
    # Each call makes a new object, under a new name.
    made_of, arguments, sources = made
    return f"{made_of.__name__}{arguments} of {[s and s.name for s in sources or ()]}"


def _said(says: Any, where: Callable[[Source], Source] | None = None) -> str:
    """A recipe's or an expression's ``says`` as text, with the sources that ``where`` gives for its own."""
    if isinstance(says, Source):
        return (where(says) if where is not None else says).name
    if isinstance(says, tuple):
        kind = type(says).__name__ if type(says) is not tuple else ""
        return f"{kind}({', '.join(_said(part, where) for part in says)})"
    return getattr(says, "__qualname__", None) or repr(says)


def _guard_key(tx: InstructionTranslatorBase, source: Source, make: Any) -> tuple[str, str]:
    """The identity of a guard.  Guards behind a class's function are the same, whichever way the source leads there."""
    name, at = source.name, source
    while "__mro__" in at.name:
        value = resolver(tx)(at)
        if type(value) is types.FunctionType and name.startswith(at.name):
            return f"{value.__qualname__} at {id(value)}{name[len(at.name) :]}", maker_key(make)
        if not isinstance(at, ChainedSource):
            break
        at = at.base
    return name, maker_key(make)


def _with_one_name(said: set[Any], guards: set[tuple[str, str]]) -> set[Any]:
    """What is ``said`` of sources, with one name for all those that ``guards`` hold to be one object.

    An object that has two names is guarded by the one that was read first, which depends on what the frame has read.
    """
    rules: dict[str, str] = {}

    def rewrite(name: str) -> str:
        before = None
        while name != before:
            before = name
            for longer in rules:
                if longer in name:  # and does not end within an identifier
                    name = re.sub(re.escape(longer) + r"(?!\w)", lambda _, one=rules[longer]: one, name)
        return name

    pairs = [(source, other) for source, make in guards for other in _ALIAS.findall(make)]
    for pair in sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1])):
        shorter, longer = sorted(map(rewrite, pair), key=lambda name: (len(name), name))
        if shorter != longer:
            rules[longer] = shorter
    renamed = {rewrite(each) if isinstance(each, str) else tuple(map(rewrite, each)) for each in said}
    aliases = {(longer, f"is {shorter}") for longer, shorter in rules.items()}
    return aliases | {each for each in renamed if isinstance(each, str) or not _ALIAS.findall(each[1])}


def _same(what: str, expected: list[str], found: list[str]) -> None:
    if expected != found:
        diff = "\n".join(difflib.unified_diff(expected, found, "expected", "traced", lineterm=""))
        raise RegionReuseError(f"{what} differ from what the reused call would have had:\n{diff}")


def note_operators(tx: InstructionTranslatorBase, entry: InvokeSubgraphReuseEntry) -> None:
    """Notes the operators with which a later reuse of ``entry`` is compared."""
    _SAVED.of(tx.output)[entry] = _seen_of(tx, entry)


def _seen_of(tx: InstructionTranslatorBase, entry: InvokeSubgraphReuseEntry) -> tuple[list[str], list[str]]:
    """The operators of an entry's call, and the metadata of its results."""
    operators = _operators(entry.call.nodes, entry.call.operands, tx.output.nn_modules)
    return operators, [str(metadata_of(value)) for value in entry.examples]


def _operators(nodes: list[torch.fx.Node], operands: list[torch.fx.Node], modules: Any) -> list[str]:
    """One line for each operator: its key and its wiring, without names."""
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
        except Unkeyable:
            constants = torch.fx.map_arg((node.args, node.kwargs), lambda operand: None)
            key = (node.op, _target_of(node, module), repr(constants))
        lines.append(f"v{i} = {key} {wiring}")
    # Each call has its own symbols of floats.
    floats: dict[str, str] = {}
    return [_FLOAT.sub(lambda name: floats.setdefault(name[0], f"float {len(floats)}"), line) for line in lines]


def _with_one_set_of_symbols(
    tx: InstructionTranslatorBase, match: Match, old: list[str], new: list[str]
) -> tuple[list[str], list[str]]:
    """The operators of two calls, with the symbols of the new one; see Note [A call's own symbols].

    Which of two equal symbols the shape environment goes on with depends on their names.
    """
    env = tx.output.shape_env
    names = {str(one): str(other) for one in env.backed_var_to_val if (other := env.replace(one)) != one}
    if match.actions.symbols is not None:
        moved = match.actions.symbols.all_moved()
        names |= {str(one): str(env.replace(other)) for one, other in moved.items()}
    if not names:
        return old, new
    renamed = (_WORD.sub(lambda word: names.get(word[0], word[0]), line) for line in old)
    # A sum has its terms in the order of their names.
    return _words_of(renamed), _words_of(new)


def _words_of(lines: Iterable[str]) -> list[str]:
    return [" ".join(sorted(_WORD.findall(line))) for line in lines]


def _target_of(node: torch.fx.Node, module: Any) -> str:
    """What ``node`` calls, without names and addresses that differ from call to call.

    A nonstrict_trace operator is a function made for the call; attributes of the graph say what it runs.
    """
    if node.op == "get_attr":
        return _ADDRESS.sub("", repr(module))
    return getattr(node.target, "__qualname__", None) or str(node.target)
