"""One search: draws programs until one fails, makes it smaller, and says what it saw on the way."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fuzz_oracle import Checked, Failure, check
from fuzz_program import Program, tags
from fuzz_reduce import reduce
from fuzz_strategies import programs
from fuzz_text import program_text
from hypothesis import HealthCheck, Phase, given, seed, settings


# How many programs, and how many seconds of work, it may take to make a failing one smaller.
REDUCE_PROGRAMS, REDUCE_SECONDS = 120, 30.0
# Programs of one search, after which its process ends.
CHUNK = 60


@dataclass(frozen=True)
class Find:
    """A failing program, as small as the budget allowed."""

    program: Program
    mode: str
    backend: str
    failure: Failure
    after: int  # programs run by this search until it failed

    @property
    def signature(self) -> tuple[str, frozenset[str]]:
        return self.failure.kind, tags(self.program)

    @property
    def name(self) -> str:
        words = [t.split(" ", 1)[1].replace(" ", "_") for t in sorted(self.signature[1]) if t[:4] in ("kind", "part")]
        return "_".join([self.failure.kind.replace(" ", "_"), *words, f"{abs(hash(self.program)) % 9999:04}"])[:80]


Known = Callable[[str, frozenset[str]], bool]


class _Enough(KeyboardInterrupt):
    """Ends a search from within: hypothesis lets it through."""


@dataclass
class Search:
    """Runs programs in ``modes``; a failure that ``known`` says was found before is counted only."""

    modes: tuple[str, ...]
    backend: str
    known: Known = lambda kind, found: False
    until: float = float("inf")  # time.monotonic()
    before: Callable[[Program, str], None] = lambda program, mode: None
    run: collections.Counter = field(default_factory=collections.Counter)
    discarded: collections.Counter = field(default_factory=collections.Counter)
    reasons: collections.Counter = field(default_factory=collections.Counter)
    failed: collections.Counter = field(default_factory=collections.Counter)
    reused: collections.Counter = field(default_factory=collections.Counter)
    find: Find | None = None
    # Seeded: what fails without it, too, is no find of it.
    fault: Callable[[], contextlib.AbstractContextManager] | None = None

    def _check(self, program: Program, mode: str) -> Checked:
        self.before(program, mode)
        if self.fault is None:
            return check(program_text(program), mode, self.backend)
        with self.fault():
            checked = check(program_text(program), mode, self.backend)
        if checked.failure is not None and not checked.discarded:
            without = check(program_text(program), mode, self.backend)
            if without.failure is not None:
                return without if without.discarded else Checked()
        return checked

    def _look(self, program: Program) -> None:
        if time.monotonic() > self.until:
            raise _Enough
        for mode in self.modes:
            checked = self._check(program, mode)
            self.run[mode] += 1
            self.reused[mode] += checked.reused > 0
            if checked.discarded:
                self.discarded[mode] += 1
                self.reasons[checked.discarded] += 1
                return
            if checked.failure is not None:
                self.failed[mode] += 1
                if not self.known(checked.failure.kind, tags(program)):
                    self.find = Find(program, mode, self.backend, checked.failure, sum(self.run.values()))
                    raise _Enough
                return

    def _reduce(self, find: Find) -> Find:
        end = time.process_time() + REDUCE_SECONDS
        last = [find.failure]

        def fails(program: Program) -> bool:
            if time.process_time() > end:
                return False
            checked = self._check(program, find.mode)
            if checked.discarded or checked.failure is None or not _alike(checked.failure, find.failure):
                return False
            last[0] = checked.failure
            return True

        program = reduce(find.program, fails, REDUCE_PROGRAMS)
        return dataclasses.replace(find, program=program, failure=last[0])

    def go(self, number: int, examples: int) -> Find | None:
        """Searches among ``examples`` programs of seed ``number``."""

        @seed(number)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=False,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
            phases=[Phase.generate],
        )
        @given(programs())
        def search(program: Program) -> None:
            self._look(program)

        with contextlib.suppress(_Enough):
            search()
        if self.find is not None and self.fault is None:
            self.find = self._reduce(self.find)
        return self.find


def _alike(a: Failure, b: Failure) -> bool:
    """Whether two failures are probably one: of one kind, and for user code of one method."""
    if a.kind != b.kind:
        return False
    if a.kind in ("error", "verify"):
        return a.message.split("\n")[0][:60] == b.message.split("\n")[0][:60]
    return a.kind != "user code" or a.message.split()[2] == b.message.split()[2]
