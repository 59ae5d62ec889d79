"""What is behind an argument of a region call: what its source leads to, which another call has of its own."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.trace.deferred import Deferred
from torch._dynamo.regions.trace.fingerprint import Arguments
from torch._dynamo.regions.trace.read_set import ReadSetRecorder
from torch._dynamo.regions.trace.substitution import Roots, bare, root_of
from torch._dynamo.variables.functions import UserFunctionVariable


if TYPE_CHECKING:
    from torch._guards import Source


class ArgumentSources:
    """Tells which sources are behind an argument of the call."""

    def __init__(self, arguments: Arguments, recorder: ReadSetRecorder, untouched: set[Source]) -> None:
        """Raises CannotReuse if sources behind an argument begin with a source that the fingerprint does not hold."""
        _check_leaves(arguments)
        self.leaf_sources = [leaf.sources for leaf in arguments.leaves]
        paths = (path.element for path in recorder.deferred.paths)
        self.roots = {s for sources in self.leaf_sources for s in sources}.union(paths)
        self._ends = Roots(self.roots | untouched)
        self._begun = Roots(self.roots)
        # Compared by identity, together with its cells: a function that Dynamo had realized before the call.
        functions = (leaf.sources for leaf in arguments.leaves if type(leaf.tracker) is UserFunctionVariable)
        self._functions = set(itertools.chain.from_iterable(functions))

    def holds(self, source: Source) -> bool:
        return self._ends.of(source) in self.roots

    def begins(self, source: Source) -> bool:
        """Whether ``source`` begins with an argument, also by way of an element that the call did not reach."""
        return self._begun.of(source) is not None

    def is_function(self, source: Source) -> bool:
        return self._ends.of(source) in self._functions


def _check_leaves(arguments: Arguments) -> None:
    for leaf in arguments.leaves:
        if issubclass(type(leaf.tracker), Deferred):
            continue  # what was read of it is specialized
        source = leaf.tracker.unwrap().source
        if source is not None and not any(root_of(s, (bare(source),)) for s in leaf.sources):
            raise CannotReuse(ReuseMissReason.UNKNOWN_CAPTURE, f"{leaf.sources[0].name} is also {source.name}")
