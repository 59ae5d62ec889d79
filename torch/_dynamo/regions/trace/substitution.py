"""Replaces the sources of a traced call by those of another call, and finds the value at a source."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch._dynamo.regions.frame import PerFrame
from torch._dynamo.regions.trace.objects import attribute_of, item_of, keys_of
from torch._dynamo.regions.trace.skeleton import Skeleton, skeleton_of
from torch._dynamo.regions.trace.sources import Step, source_parts, step_of
from torch._dynamo.source import (
    DictGetItemSource,
    DictSubclassGetItemSource,
    LocalSource,
    NNModuleSource,
    NonSerializableSetGetItemSource,
    TypeDictSource,
)
from torch._guards import ChainedSource, Source
from torch.utils._release import RELEASE


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


def chain_of(source: Source) -> Iterator[Source]:
    """``source``, its base, the base of that, and so on."""
    at: Source | None = source
    while at is not None:
        yield at
        at = at.base if isinstance(at, ChainedSource) else None


def root_of(source: Source, roots: Iterable[Source]) -> Source | None:
    """The nearest of ``roots`` on the chain of bases of ``source``, itself included; None if none is."""
    return next((at for at in chain_of(source) if at in roots), None)


class Roots:
    """``root_of`` for many sources with bases in common: looks each base up once."""

    def __init__(self, roots: set[Source]) -> None:
        self._roots = roots
        self._known: dict[Source | None, Source | None] = {None: None}

    def of(self, source: Source) -> Source | None:
        if not self._roots:
            return None
        way: list[Source] = []
        at: Source | None = source
        while at is not None and at not in self._known:
            way.append(at)
            if at in self._roots:
                self._known[at] = at
                break
            at = at.base if isinstance(at, ChainedSource) else None
        root = self._known[at]
        self._known.update(dict.fromkeys(way, root))
        return root


def bare(source: Source) -> Source:
    """``source`` without the wrappers that Dynamo adds to a module's source when it realizes the module."""
    while isinstance(source, NNModuleSource):
        source = source.base
    return source


UNKNOWN: Any = object()


class SourceBinding:
    """What one call knows of a source of an earlier call."""

    __slots__ = ("above", "action", "known", "moves", "new", "same", "skeleton", "source", "tracker", "value")

    def __init__(
        self,
        source: Source,
        new: Source | None,
        moves: bool,
        skeleton: Skeleton | None = None,
        above: SourceBinding | None = None,
    ) -> None:
        # The source in the earlier call, kept alive so that its id is not reused.
        self.source = source
        # The source in this call; None until it is needed.
        self.new = new
        # Whether this call's source differs from the earlier one's.
        self.moves = moves
        # The value there in this call.
        self.value = UNKNOWN
        self.action: GuardAction | None = None
        # Whether the earlier call found the same object there: then all facts about it hold.
        self.same = False
        # The frame's tracker of the value, if any.
        self.known: VariableTracker | None = None
        # The tracker that was built of the value for this call, if any.
        self.tracker: VariableTracker | None = None
        # The source without its base, and the binding of the base.
        self.skeleton = skeleton
        self.above = above


class SourceSubstitution:
    """Rewrites sources: a source that begins with an old root then begins with the new root.

    An entry looks up the same source objects for each call, so bindings are found by id: a source's hash is slow.
    """

    def __init__(self, roots: dict[Source, Source]) -> None:
        # old root -> new root
        self._roots = dict(roots)
        # id of a source -> its binding
        self.bindings: dict[int, SourceBinding] = {}

    def __call__(self, source: Source) -> Source:
        return self.of(self.binding(source))

    def of(self, binding: SourceBinding) -> Source:
        """The source of ``binding`` in this call."""
        if binding.new is None:
            source: Any = binding.source
            if not binding.moves:
                binding.new = source
            elif binding.skeleton is not None and binding.above is not None:
                binding.new = binding.skeleton.behind(binding.above.new or self.of(binding.above))
            else:
                parts = {name: self(part) for name, part in source_parts(source).items()}
                binding.new = dataclasses.replace(source, **parts)
        return binding.new

    def binding(self, source: Source) -> SourceBinding:
        binding = self.bindings.get(id(source))
        if binding is None:
            root = self._roots.get(source)
            if root is not None:
                binding = SourceBinding(source, root, root != source)
            elif (skeleton := skeleton_of(source)) is not None:
                above = self.binding(source.base)  # type: ignore[attr-defined]
                binding = SourceBinding(source, None, above.moves, skeleton, above)
            else:
                moves = any(self.binding(part).moves for part in source_parts(source).values())
                binding = SourceBinding(source, None, moves)
            self.bindings[id(source)] = binding
        return binding

    def add(self, old: Source, new: Source) -> bool:
        """Adds a root.  False if ``old`` is a root already, with another new one."""
        if old not in self._roots:
            self._roots[old] = new
            self.bindings.clear()
        return self._roots[old] == new


def resolver(tx: InstructionTranslatorBase) -> Resolver:
    """The frame's resolver.  Real values stay as they are until the frame is compiled."""
    return _RESOLVERS.of(tx.output)


class Resolver:
    """Finds the real value at a source, as it was when the frame began.

    Follows the common kinds of sources directly, without evaluating the text of their names.
    """

    def __init__(self, output: Any) -> None:
        root = output.root_tx
        self._globals: Any = {"G": root.f_globals, "L": root.f_locals}
        # source -> its value; also for bases, which sources have in common.
        self._values: dict[Source, Any] = {}
        # id of a source -> the source, kept alive so that its id is not reused, and its value; a source's hash is slow
        self._by_id: dict[int, tuple[Source, Any]] = {}

    def __call__(self, source: Source) -> Any:
        """Raises what following the source raises, since nothing may stand there."""
        known = self._by_id.get(id(source))
        if known is not None:
            return known[1]
        value = self._values.get(source, UNKNOWN)
        if value is UNKNOWN:
            value = _follow(source, self)
            self._values[source] = value = self._find(source) if value is UNKNOWN else value
        self._by_id[id(source)] = source, value
        return value

    def _find(self, source: Any) -> Any:
        if type(source) is LocalSource:
            return self._globals["L"][source.local_name]
        if isinstance(source, NonSerializableSetGetItemSource):
            return keys_of(self(source.base))[source.index]
        if isinstance(source, (DictGetItemSource, DictSubclassGetItemSource)):
            return item_of(self(source.base), self(source.index) if isinstance(source.index, Source) else source.index)
        if isinstance(source, ChainedSource):
            self(source.base)
        return source.get_value(self._globals, {}, self._values)


def _follow(source: Any, at: Callable[[Source], Any]) -> Any:
    """The value at a source of a common kind; ``at`` gives that at its base.  ``UNKNOWN`` for other kinds."""
    step, key = step_of(source)
    if step in (Step.EVALUATED, Step.OTHER):
        return UNKNOWN
    value = at(source.base)
    if step is Step.ATTRIBUTE:
        return attribute_of(value, key)
    return item_of(value, key) if step is Step.ITEM else value


def is_in_class(source: Source) -> bool:
    """Whether ``source`` is the dictionary of a class, or an attribute found there."""
    return type(source) is TypeDictSource or is_found_in_class(source)


def is_found_in_class(source: Source) -> bool:
    """Whether ``source`` is an attribute found in the dictionary of a class."""
    return type(source) is DictGetItemSource and type(source.base) is TypeDictSource


_RESOLVERS: PerFrame[Resolver] = PerFrame(Resolver)


class GuardAction(enum.Enum):
    """What becomes, in a call, of the guards at a source of the earlier call."""

    SAME = enum.auto()  # the source is the same: nothing to do
    REINSTALL = enum.auto()  # the object is new to the frame: its guards are installed at this source
    ALIAS = enum.auto()  # the frame knows the object by another source: an alias guard
    CLASS_LOOKUP = enum.auto()  # Dynamo looked the attribute up in its class before: guarded at that source
    UNDER_ALIAS = enum.auto()  # behind ALIAS or CLASS_LOOKUP: guarded behind the known source


class GuardActions:
    """What tracing one call would do at each source of an earlier call."""

    def __init__(self, tx: InstructionTranslatorBase, substitution: SourceSubstitution, resolve: Resolver) -> None:
        self.substitution = substitution
        self.resolve = resolve
        # The call's symbols in the place of the traced call's own (a SymbolMap); None if that has none.
        self.symbols: Any = None
        self._trackers = tx.output.side_effects.id_to_variable
        self._stamped = STAMPED.of(tx.output)
        # Dynamo's cache of lookups in classes: (id of the value found, name) -> source
        self._in_classes = tx.output.mro_source_cache
        # Dynamo's set of guarded absences: (id of a class, name that it must not have)
        self._absent = tx.output.guarded_mro_absent_keys

    def __call__(self, source: Source) -> GuardAction:
        """Raises what following the source raises."""
        return self.look(source).action  # type: ignore[return-value]

    def value(self, source: Source) -> Any:
        """The value in this call at the substituted ``source``.  Raises what following the source raises.

        Avoids making the substituted source: most values can be found without it.
        """
        binding = self.substitution.binding(source)
        if binding.value is UNKNOWN:
            value = UNKNOWN if binding.new is not None or not binding.moves else _follow(source, self.value)
            binding.value = self.resolve(self.substitution(source)) if value is UNKNOWN else value
        return binding.value

    def behind_known(self, source: Source) -> Source:
        """The source that tracing the call would use for ``source``, maybe behind an object that the frame knows."""
        action = self(source)
        if action is GuardAction.UNDER_ALIAS and isinstance(source, ChainedSource):
            new = self.substitution(source)
            if not isinstance(new, ChainedSource) or new.base != self.substitution(source.base):
                return new
            parts: Any = {name: self.behind_known(part) for name, part in source_parts(source).items()}
            return dataclasses.replace(new, **parts)
        if action is GuardAction.ALIAS:
            return self.known(self.value(source)) or self.substitution(source)
        if action is GuardAction.CLASS_LOOKUP:
            return self.known(self.value(source)) or self.in_class(source) or self.substitution(source)
        return self.substitution(source)

    def in_class(self, source: Source) -> Source | None:
        """The source of Dynamo's earlier lookup of this attribute in a class, if any."""
        return self._in_classes.get(self._lookup_key(source))

    def _lookup_key(self, source: Any) -> tuple[int, str]:
        """Dynamo's key of a lookup in a class: the name and the value found, or from 2.15 on the class that has it."""
        found = source.base.base if RELEASE >= (2, 15) else source
        return id(self.value(found)), source.index

    def known(self, value: Any) -> Source | None:
        """The source by which the frame knows an object: its tracker's, or that of a stamped call that read it."""
        tracker = self._trackers.get(id(value))
        if tracker is not None:
            return tracker.source
        actions, binding = self._stamped.get(id(value), (None, None))
        return None if actions is None or binding is None else actions.where(binding)

    def is_new(self, binding: SourceBinding) -> bool:
        """Whether tracing the call would make the object at ``binding`` known to the frame."""
        if binding.action is GuardAction.UNDER_ALIAS:
            return binding.known is None and id(binding.value) not in self._stamped
        return binding.action is GuardAction.REINSTALL

    def where(self, binding: SourceBinding) -> Source:
        """The source at which tracing the call would build the value at ``binding``, which has its action."""
        under = binding.action is GuardAction.UNDER_ALIAS
        return self.behind_known(binding.source) if under else self.substitution.of(binding)

    def remember(self, binding: SourceBinding) -> None:
        """Makes the object at ``binding`` known to later calls, as if this call were traced."""
        self._stamped.setdefault(id(binding.value), (self, binding))

    def unguarded(self, binding: SourceBinding, makers: Iterable[Any]) -> Iterable[Any]:
        """``makers`` of guards on a class, without guards on absent names that Dynamo has made at another source."""
        made = {make for make, absence in self._absences(binding, makers) if absence in self._absent}
        return [make for make in makers if make not in made]

    def _absences(self, binding: SourceBinding, makers: Iterable[Any]) -> Iterator[tuple[Any, tuple[int, str]]]:
        if type(binding.source) is TypeDictSource:
            kind = id(self.value(binding.source.base))
            yield from (
                (make, (kind, make.keywords["key"])) for make in makers if "key" in getattr(make, "keywords", ())
            )

    def keep_class_lookup(self, binding: SourceBinding, makers: Iterable[Any]) -> None:
        """Makes a lookup in a class, which tracing this call would make first, known to later calls."""
        if is_found_in_class(binding.source):
            new: Any = self.substitution.of(binding)
            self._in_classes.setdefault(self._lookup_key(binding.source), new)
        self._absent.update(absence for _, absence in self._absences(binding, makers))

    def look(self, source: Source) -> SourceBinding:
        """The binding of ``source`` in this call, with its action.  Raises what following the source raises."""
        binding = self.substitution.binding(source)
        if binding.action is None:
            value = self.value(source)
            above = self.look(source.base) if binding.moves and isinstance(source, ChainedSource) else None
            same = not binding.moves or value is self.resolve(source)
            self.settle(binding, above, same, is_found_in_class(source))
        return binding

    def settle(self, binding: SourceBinding, above: SourceBinding | None, same: bool, in_class: bool) -> None:
        """Decides the action at ``binding``, behind ``above``.

        ``same``: whether the value is the earlier call's object.  ``in_class``: whether it was found in a class.
        Pending changes of the object do not matter here: lookup.py checks all objects of a call for these.
        """
        number = id(binding.value)
        binding.same = same
        binding.known = known = self._trackers.get(number)
        if not binding.moves:
            binding.action = GuardAction.SAME
        elif in_class and self._is_another(self.in_class(binding.source), binding):
            # Dynamo finds the lookup by identity, whatever the frame knows of the class.
            binding.action = GuardAction.CLASS_LOOKUP
        elif above is not None and above.action in _AT_KNOWN:
            binding.action = GuardAction.UNDER_ALIAS
        elif (known is not None or number in self._stamped) and self._is_another(self.known(binding.value), binding):
            binding.action = GuardAction.ALIAS
        else:
            binding.action = GuardAction.REINSTALL

    def _is_another(self, known: Source | None, binding: SourceBinding) -> bool:
        return known is not None and known.name != self.substitution.of(binding).name


# id of an object that a stamped call read and Dynamo does not track -> what makes its source in that call.
STAMPED: PerFrame[dict[int, tuple[GuardActions, SourceBinding]]] = PerFrame(lambda _: {})
_AT_KNOWN = (GuardAction.ALIAS, GuardAction.CLASS_LOOKUP, GuardAction.UNDER_ALIAS)
