"""Facts that guards state, with a decision about every kind of guard that Dynamo can make.

A reuse installs the guards of the traced call again, at the substituted sources.  First, the fact that each guard
states must hold for the object there in the new call.  ``GUARDS`` has a decision for every kind of guard.  A kind
without a decision is refused, and a test names it.  No function here runs the program's code.
"""

from __future__ import annotations

import enum
import itertools
import types
from collections.abc import Callable, Container, Hashable, Iterable
from typing import Any, cast

import torch
from torch._dynamo import guards as dynamo_guards
from torch._dynamo.regions.keys import Unkeyable, constant_key
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.trace.function_code import code_of
from torch._dynamo.regions.trace.objects import (
    EXACT,
    RunsCode,
    base_constant,
    contains,
    exact_key,
    has_attribute,
    holds_nan,
    is_a,
    is_exact,
    keys_key,
    keys_of,
    length_of,
    own_attributes,
)
from torch._dynamo.regions.trace.sources import WITHOUT_GUARDS
from torch._dynamo.regions.trace.substitution import chain_of
from torch._guards import Source
from torch.utils._release import RELEASE


class GuardDecision(enum.Enum):
    """What a reuse does about a kind of guard that it does not reinstall."""

    REMADE = "made anew where the value or its alias is built, or by the identity of objects"
    GLOBAL = "about the state of the process, not about its source"
    REFUSED = "a call with such a guard is not reused"


Fact = Callable[[Any, dict[str, Any]], Hashable]


def _constant(value: Any, _: Any) -> Hashable:
    if holds_nan(value):
        return id(value)  # containers find it by its identity
    if (type(value) is set or type(value) is frozenset) and all(map(is_exact, value)):
        return type(value), *map(exact_key, value)  # in order: the program may go through it
    try:
        return exact_key(value) or constant_key(value)
    except Unkeyable:
        return id(value)  # to the program, an equal object may not be the same


def _function(value: Any, _: Any) -> Hashable:
    # Dynamo guards the code only. Sources behind the function cover what else it reads, except its globals.
    return code_of(value)


def _by_torch(kind: str) -> Fact:
    """The fact of a guard whose check is torch's own, for values of torch's or Python's classes."""
    spec: Any = dynamo_guards.GUARD_VALUE_DISPATCH[kind]

    def fact(value: Any, bound: dict[str, Any]) -> Hashable:
        guard = types.SimpleNamespace(create_fn=types.SimpleNamespace(keywords=bound))
        return cast(Hashable, _AsChecked(spec.eval_fn, spec.get_metadata_fn(guard, value), value))

    return fact


class _AsChecked:
    """Equal to the fact of another value if torch's check of that guard accepts this value."""

    def __init__(self, check: Callable[[Any, Any], bool], expected: Any, value: Any) -> None:
        self.check, self.expected, self.value = check, expected, value

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AsChecked) and bool(self.check(self.value, other.expected))


def _same_object(value: Any, _: Any) -> Hashable:
    return id(value)


def _keys(value: Any, _: Any) -> Hashable:
    return keys_key(keys_of(value))


def _has_key(value: Any, bound: dict[str, Any]) -> Hashable:
    return contains(value, bound["key"])


_FACTS: dict[str, Fact] = {
    "TYPE_MATCH": lambda value, _: id(type(value)),
    "ID_MATCH": _same_object,
    "NN_MODULE": _same_object,
    "FUNCTION_MATCH": _same_object,
    "CLASS_MATCH": _same_object,
    "MODULE_MATCH": _same_object,
    "BUILTIN_MATCH": _same_object,
    "CLOSURE_MATCH": _function,
    "BOOL_MATCH": _constant,
    "NONE_MATCH": _constant,
    "EQUALS_MATCH": _constant,
    "CONSTANT_MATCH": _constant,
    "CONSTANT_SUBCLASS_MATCH": lambda value, _: base_constant(value),
    "NOT_NONE_MATCH": lambda value, _: value is not None,
    "HASATTR": lambda value, bound: has_attribute(value, bound["attr"]),
    "NOT_PRESENT_IN_GENERIC_DICT": lambda value, bound: bound["attr"] in (own_attributes(value) or ()),
    "DICT_CONTAINS": _has_key,
    "DICT_NOT_CONTAINS": _has_key,
    "SET_CONTAINS": _has_key,
    "SET_NOT_CONTAINS": _has_key,
    "DICT_KEYS_MATCH": _keys,
    "MAPPING_KEYS_CHECK": _keys,
    "SEQUENCE_LENGTH": lambda value, _: (id(type(value)), length_of(value)),
    "EMPTY_NN_MODULE_HOOKS_DICT": lambda value, _: length_of(value),
    "WEAKREF_ALIVE": lambda value, _: value is not None,
    "DISPATCH_KEY_SET_MATCH": lambda value, _: value.raw_repr(),
    "TUPLE_ITERATOR_LEN": _by_torch("TUPLE_ITERATOR_LEN"),
    "RANGE_ITERATOR_MATCH": _by_torch("RANGE_ITERATOR_MATCH"),
    "COUNT_ITERATOR_MATCH": _by_torch("COUNT_ITERATOR_MATCH"),
    "FAKE_SCRIPT_TYPE_MATCH": _by_torch("FAKE_SCRIPT_TYPE_MATCH"),
    "OPAQUE_OBJ_GUARD_FN_MATCH": _by_torch("OPAQUE_OBJ_GUARD_FN_MATCH"),
}

GUARDS: dict[str, Fact | GuardDecision] = {
    **_FACTS,
    "TENSOR_MATCH": GuardDecision.REMADE,
    "DTENSOR_SPEC_MATCH": GuardDecision.REMADE,
    "DUPLICATE_INPUT": GuardDecision.REMADE,
    **dict.fromkeys(
        (
            *("GRAD_MODE", "DETERMINISTIC_ALGORITHMS", "FSDP_TRAINING_STATE", "GLOBAL_STATE", "TORCH_FUNCTION_STATE"),
            *("DEFAULT_DEVICE", "SHAPE_ENV", "DUAL_LEVEL", "FUNCTORCH_STACK_MATCH", "AUTOGRAD_SAVED_TENSORS_HOOKS"),
        ),
        GuardDecision.GLOBAL,
    ),
    # The metadata belongs to a subclass, whose own code compares it.
    "TENSOR_SUBCLASS_METADATA_MATCH": GuardDecision.REFUSED,
    "DICT_VERSION": GuardDecision.REFUSED,
}
if RELEASE >= (2, 15):
    # Copy-on-write storage, the current stream, a list's reverse iterator: nothing here reads these as Dynamo does.
    GUARDS |= dict.fromkeys(
        ("COW_TENSOR_MATCH", "CURRENT_STREAM_MATCH", "LIST_REVERSEITERATOR_LEN"), GuardDecision.REFUSED
    )

# Guards on a constant's value. For a number, Dynamo decides when it builds the tracker whether it is a constant.
_OF_CONSTANTS = ("CONSTANT_MATCH", "EQUALS_MATCH")
_OF_CLASS = (*_OF_CONSTANTS, "BOOL_MATCH", "NONE_MATCH", "CLOSURE_MATCH", "CLASS_MATCH")
# Types of the arguments of a guard's maker that mean the same at another source: names, keys, classes.
_PLAIN = (*EXACT, type, Source)


class GuardFact:
    """One guard of a traced call: its source and maker, and the fact that it states about the object there."""

    __slots__ = ("bound", "expected", "fact", "kind", "make", "source", "value")

    def __init__(self, source: Source, kind: str, make: Any, value: Any, whole: bool) -> None:
        """``whole``: the fact is the object's identity.  Raises what computing the fact raises."""
        self.source, self.kind, self.make = source, kind, make
        self.bound: dict[str, Any] = getattr(make, "keywords", {})
        # Kept alive, so that ids in the fact are not reused.
        self.value = value
        self.fact: Fact = _same_object if whole else _FACTS[kind]
        self.expected = self.fact(value, self.bound)

    def holds(self, value: Any) -> bool:
        """Whether the guard states the same about ``value``.  False if only the program's code could tell."""
        try:
            return self.fact(value, self.bound) == self.expected
        except (RunsCode, Unkeyable, TypeError, AttributeError, KeyError):
            return False

    @property
    def may_have_a_symbol(self) -> bool:
        """Whether the guard says that a number is a constant: Dynamo decides that when it builds the tracker."""
        return self.kind in _OF_CONSTANTS and type(self.value) in (int, float)


def can_be_made(fact: GuardFact, value: Any) -> bool:
    """Whether the guard of ``fact`` can be made for another ``value``: some (``_OF_CLASS``) for one of its class."""
    if fact.kind in _OF_CLASS:
        return type(value) is type(fact.value) or (fact.kind in _OF_CONSTANTS and is_exact(value))
    return fact.kind == "ID_MATCH" or fact.holds(value)


def is_implied(fact: GuardFact, value: Any) -> bool:
    """Whether ``fact``, which is about ``value``, holds for all objects with the same ``unguarded_state``."""
    if fact.fact is not _FACTS[fact.kind]:
        return False
    if fact.kind == "EMPTY_NN_MODULE_HOOKS_DICT":
        return is_a(value, dict)  # by its keys
    if fact.kind == "NOT_PRESENT_IN_GENERIC_DICT":
        return is_a(value, torch.nn.Module)  # by its own attributes
    return fact.kind == "TYPE_MATCH"


def guard_fact(guard: Any, resolve: Callable[[Source], Any], opaque: Container[Source] = ()) -> GuardFact | None:
    """The fact that a guard states; None if the guard is made anew in each call, or is not about its source.

    ``opaque``: sources of functions that Dynamo puts into the graph as they are.

    Raises CannotReuse for a guard that cannot be substituted.
    """
    kind: str = guard.create_fn_name()
    source: Source = guard.originating_source
    decision = GUARDS.get(kind, GuardDecision.REFUSED)
    if decision in (GuardDecision.REMADE, GuardDecision.GLOBAL):
        return None
    bound = getattr(guard.create_fn, "keywords", {}).values()
    # A container finds a number that equals nothing by its identity.
    if isinstance(decision, GuardDecision) or not all(isinstance(v, _PLAIN) and not holds_nan(v) for v in bound):
        raise CannotReuse(ReuseMissReason.UNSUPPORTED_GUARD, f"{kind} on {source.name}")
    try:
        return GuardFact(source, kind, guard.create_fn, resolve(source), source in opaque)
    except Exception as e:
        raise CannotReuse(ReuseMissReason.UNSUPPORTED_GUARD, f"{kind} on {source.name}: {e}") from None


def facts_of(guards: Iterable[Any], resolve: Callable[[Source], Any], opaque: Container[Source]) -> list[GuardFact]:
    """The facts that ``guards``, a list for each source, state.  Raises CannotReuse like ``guard_fact``."""
    found = (guard_fact(guard, resolve, opaque) for of_source in guards for guard in _without_twins(of_source))
    return [fact for fact in found if fact is not None]


def _without_twins(guards: list[Any]) -> Iterable[Any]:
    """The first guard of each kind at one source: Dynamo makes one each time that a call reads the source."""
    found: dict[str, Any] = {}
    for guard in guards if len(guards) > 1 else ():
        found.setdefault(maker_key(guard.create_fn), guard)
    return found.values() or guards


def facts_without_guards(
    sources: Iterable[Source], holds: Callable[[Source], bool], resolve: Callable[[Source], Any]
) -> list[GuardFact]:
    """The identities of the objects on the way to ``sources`` behind which Dynamo makes no guards: annotations, say.

    Only those at sources that ``holds`` accepts.
    """
    ways = itertools.chain.from_iterable(map(chain_of, sources))
    found = dict.fromkeys(at for at in ways if type(at) is WITHOUT_GUARDS and holds(at))
    return [GuardFact(source, "ID_MATCH", None, resolve(source), True) for source in found]


def in_force(guards: Any, of_source: Iterable[Any]) -> list[Any]:
    """Those of a source's guards in Dynamo's index that no stronger guard has replaced."""
    return [guard for guard in of_source if guard in guards.inner]


def has_guard(guards: Any, source: Source, make: Any) -> bool:
    """Whether a guard at ``source`` that checks what ``make`` would is in force."""
    wanted = maker_key(make)
    return any(maker_key(g.create_fn) == wanted for g in in_force(guards, guards.source_to_guards.get(source, ())))


def maker_key(make: Any) -> str:
    """The kind of guard, and what it is about besides its source."""
    bound = getattr(make, "keywords", {})
    name = getattr(make, "func", make).__name__
    if name == "TENSOR_MATCH":
        return name  # the tensor itself, by weak reference
    # A hint says where the program got the value, which may be an attribute in one call and a global in another.
    about = ((k, v) for k, v in bound.items() if k != "recompile_hint")
    return name + "".join(f" {k}={v.name if isinstance(v, Source) else repr(v)}" for k, v in about)
