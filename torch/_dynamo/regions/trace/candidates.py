"""Decides which module calls become automatic regions: the policy behind ``automatic_nested_compile_regions``.

Note [A candidate repeats]
A region pays off if a later call of the frame can be stamped out of its first one.  Only tracing both calls would tell.
But a cheap test predicts it: two modules with the same *structure* (the classes and metadata of everything in them,
names included) nearly always trace alike, and two with different structures never do.  So a module is a candidate if
its scope holds another module of the same structure, or has called one before.  A scope is the frame, or the body of a
candidate during its trace.

- Only the outermost such modules are candidates: a block is, its attention is not, though attention repeats too.  A
  module whose other occurrences are all inside candidates is none (a model's last norm, if its blocks have norms).
- Inside a candidate, a structure must occur several times and have some size, because the candidate itself is traced
  only once.
- If calls of a module with hooks cannot be alike, since a hook collects what all layers return for instance, then only
  its ``forward`` is a candidate from then on, and its hooks are traced.
- If its reuses save less than its traces cost (``MAX_LOSS``), or after a permanent miss, a structure is inlined for the
  rest of the frame.  Modules inside it are treated as if inside a candidate: the search of the finished graph may find
  the whole.

A wrong prediction costs time only: reuse itself is decided elsewhere.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import types
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.regions.facts import expect_calls
from torch._dynamo.regions.outcomes import ReuseMissReason
from torch._dynamo.regions.trace.module_hooks import HOOKS, is_filled
from torch._dynamo.regions.trace.objects import (
    exact_key,
    find_in_class,
    is_a,
    modules_of,
    of_class,
    own_attributes,
    parts_of,
)
from torch._dynamo.regions.trace.substitution import resolver
from torch._guards import ChainedSource


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import Source


Module = torch.nn.Module
# Classes of tensors whose metadata is read without running the program's code.
_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

# Least number of modules in a block, itself included. Tracing a single module costs little more than looking up whether
# it was traced before, and a container of torch's with one module inside is no better.
MIN_MODULES = 2
MIN_MODULES_OF_TORCH = 3
# The same for a block inside another block, and how many such blocks the outer one must hold, as it is traced once.
MIN_INNER_MODULES = 3
MIN_INNER_REPEATS = 4
# What the trace of a call as a region costs more than a plain one, and what a reuse saves of a plain one. Measured
# where each traced call is reused once (a step of Runge-Kutta in a float of time): 1.2 and 0.8 of a plain trace.
LOSS_OF_TRACE, GAIN_OF_REUSE = 3, 2
# A structure that has lost this much is inlined from then on. That of four traces, because two layers may alternate,
# and the first of each may differ from the rest.
MAX_LOSS = 4 * LOSS_OF_TRACE
# Permanent misses: every call of a module with the same structure would have them.
_FINAL = frozenset(
    {
        ReuseMissReason.UNSUPPORTED_ARGUMENT,
        ReuseMissReason.UNSUPPORTED_RESULT,
        ReuseMissReason.UNSUPPORTED_GUARD,
        ReuseMissReason.UNKNOWN_CAPTURE,
        ReuseMissReason.SIDE_EFFECT,
        ReuseMissReason.WRITES_A_TENSOR,
        ReuseMissReason.CHANGES_GLOBAL_STATE,
        ReuseMissReason.RESULT_SHARES_MEMORY,
        ReuseMissReason.UNBACKED_SYMBOL,
        ReuseMissReason.INDEX_NOT_ALONE,
        ReuseMissReason.SYMBOLIC_NUMBER,
    }
)
# What hooks may be the cause of.
_OF_HOOKS = _FINAL | {ReuseMissReason.READS_PENDING_STATE}
_DICTS_OF_HOOKS = (*HOOKS, "_backward_hooks", "_backward_pre_hooks")


@dataclasses.dataclass
class _Scope:
    """The frame, or the body of a candidate; see Note [A candidate repeats]."""

    # ids of the modules that are candidates here.
    candidates: set[int] = dataclasses.field(default_factory=set)
    # structure -> number of modules that were called here, and were no candidates
    called: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)


class Candidates:
    """The candidates of one frame."""

    def __init__(self) -> None:
        self._structures = _Structures()
        self._scopes = [_Scope()]
        # ids of the modules that a search for candidates has covered.
        self._searched: set[int] = set()
        self._refused: set[int] = set()
        # Structures whose hooks are no part of their regions.
        self._without_hooks: set[int] = set()
        # structure -> what its calls have lost by being regions
        self._lost: collections.Counter[int] = collections.Counter()

    def accepts(self, tx: InstructionTranslatorBase, module: Module, source: Source) -> bool:
        """Whether a call of ``module``, which stands at ``source``, becomes a region."""
        scope = self._scopes[-1]
        inner = len(self._scopes) > 1
        if not inner:
            self._search(tx, module, source)
        if not _is_block(module):
            return False
        structure = self._structures.of(module)
        if structure in self._refused:
            return False
        if id(module) in scope.candidates:
            return True
        scope.called[structure] += 1
        if not inner:
            return scope.called[structure] >= 2
        return scope.called[structure] >= MIN_INNER_REPEATS and _holds(module, MIN_INNER_MODULES)

    @contextlib.contextmanager
    def inside(self, module: Module) -> Iterator[None]:
        """A context in which a call of ``module`` is traced: opens its scope."""
        self._scopes.append(_Scope(self._repeated(modules_of(module), _is_inner_block, MIN_INNER_REPEATS)))
        try:
            yield
        finally:
            self._scopes.pop()

    def has_refused(self, module: Module) -> bool:
        """Whether modules of this structure are inlined after a trial: then their parts had better stay together."""
        return bool(self._refused) and _is_block(module) and self._structures.of(module) in self._refused

    def leaves_out_hooks(self, module: Module) -> bool:
        """Whether only the ``forward`` of modules of this structure is a candidate."""
        return bool(self._without_hooks) and self._structures.of(module) in self._without_hooks

    def learn(self, module: Module, reused: bool, miss: ReuseMissReason | None) -> None:
        """Notes the outcome of a call of ``module``."""
        structure = self._structures.of(module)
        if miss in _OF_HOOKS and structure not in self._without_hooks and _has_hooks(module):
            self._without_hooks.add(structure)
            return
        self._lost[structure] += -GAIN_OF_REUSE if reused else LOSS_OF_TRACE
        if miss in _FINAL or self._lost[structure] >= MAX_LOSS:
            self.refuse(module)

    def refuse(self, module: Module) -> None:
        """Inlines modules of this structure for the rest of the frame."""
        self._refused.add(self._structures.of(module))

    def _search(self, tx: InstructionTranslatorBase, module: Module, source: Source) -> None:
        if id(module) in self._searched:
            return
        found: list[Module] = []
        for holder in _holders(tx, module, source):
            found += _modules_in(holder)
        self._scopes[0].candidates |= self._repeated(found, _is_block, 2, self._searched)
        if self._scopes[0].candidates:
            expect_calls(len(self._scopes[0].candidates))

    def _repeated(
        self, tops: Iterable[Module], is_block: Any, least: int, searched: set[int] | None = None
    ) -> set[int]:
        """ids of the outermost blocks in ``tops`` whose structure has at least ``least`` of these outermost blocks.

        Adds the ids of all modules in ``tops`` to ``searched``.
        """
        tops = list(tops)
        seen = {id(m): m for top in tops for m in _all_modules(top)}
        if searched is not None:
            searched.update(seen)
        count = collections.Counter(self._structures.of(m) for m in seen.values() if is_block(m))
        while True:
            outermost = list(_outermost(tops, lambda m: is_block(m) and count[self._structures.of(m)] >= least))
            left = collections.Counter(map(self._structures.of, outermost))
            if all(left[structure] >= least for structure in left):
                return set(map(id, outermost))
            for structure, n in left.items():
                if n < least:
                    count[structure] = 0


class _Structures:
    """Numbers modules by structure: modules with equal numbers have equal classes and metadata."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        # id of a module -> the module, kept alive so that its id is not reused, and its number.
        self._known: dict[int, tuple[Module, int]] = {}

    def of(self, module: Module) -> int:
        """The number of a module's structure at the first query."""
        known = self._known.get(id(module))
        if known is None:
            known = self._known[id(module)] = (module, self._number(module))
        return known[1]

    def _number(self, module: Module) -> int:
        own = own_attributes(module) or {}
        # A tensor of another class may run the program's code.
        tensors = tuple(
            (name, type(t) in _TENSORS and (type(t), t.shape, t.dtype, t.requires_grad))
            for part in ("_parameters", "_buffers")
            for name, t in parts_of(own, part)
        )
        parts = tuple((name, None if m is None else self.of(m)) for name, m in parts_of(own, "_modules"))
        training = own.get("training")  # anything, if the program has bound it to something else
        key = (id(type(module)), exact_key(training) or id(training), tensors, parts)
        return self._numbers.setdefault(key, len(self._numbers))


def _holders(tx: InstructionTranslatorBase, module: Module, source: Source) -> Iterator[Any]:
    """The outermost module on the way to ``source``, and the containers between ``module`` and the next one above."""
    resolve = resolver(tx)
    top, at = module, source
    while True:
        try:
            value = resolve(at)
        except Exception:
            break  # nothing stands there when the frame begins
        if is_a(value, Module):
            top = value
        elif top is module and is_a(value, (list, tuple, dict)):
            yield value
        if not isinstance(at, ChainedSource):
            break
        at = at.base
    yield top


def _modules_in(holder: Any) -> list[Module]:
    if is_a(holder, Module):
        return [holder]
    kind: Any = next(kind for kind in (dict, list, tuple) if is_a(holder, kind))
    held = dict.values(holder) if kind is dict else kind.__iter__(holder)
    return [m for m in held if is_a(m, Module)]


def _outermost(tops: Iterable[Module], chosen: Any) -> Iterator[Module]:
    """The modules that are ``chosen`` and inside no other chosen module."""
    todo, seen = list(tops), set()
    while todo:
        module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if chosen(module):
            yield module
        else:
            todo += modules_of(module)


def _has_hooks(module: Module) -> bool:
    own = own_attributes(module) or {}
    return any(is_filled(own.get(name)) for name in _DICTS_OF_HOOKS)


def _holds(module: Module, least: int) -> bool:
    """Whether ``module`` holds at least ``least`` modules, itself included."""
    return sum(1 for _ in itertools.islice(_all_modules(module), least)) == least


def _all_modules(module: Module) -> Iterator[Module]:
    """``module`` and all modules inside it, each once."""
    todo, seen = [module], {id(module)}
    while todo:
        at = todo.pop()
        yield at
        for inner in modules_of(at):
            if id(inner) not in seen:
                seen.add(id(inner))
                todo.append(inner)


def _is_inner_block(module: Module) -> bool:
    return _is_block(module) and _holds(module, MIN_INNER_MODULES)


def _is_block(module: Module) -> bool:
    """Whether calls of ``module`` may be regions: it is large enough, and neither a wrapper nor marked."""
    kind: Any = type(module)
    own = own_attributes(module) or {}
    if not parts_of(own, "_modules") or _is_wrapper(kind):
        return False
    forward = own.get("forward", find_in_class(kind, "forward"))
    forward = forward.__func__ if type(forward) is types.MethodType else forward
    if "__marked_compile_region_fn__" in (own_attributes(forward) or ()):
        return False  # the user's mark decides
    of_torch = str(of_class(kind, "__module__")).startswith("torch.nn.")
    return _holds(module, MIN_MODULES_OF_TORCH if of_torch else MIN_MODULES)


def _is_wrapper(kind: type) -> bool:
    """Whether a class wraps a module to act around its call.  The wrapped module may be a region."""
    bases = of_class(kind, "__mro__")
    return any(f"{of_class(base, '__module__')}.{of_class(base, '__qualname__')}" in _WRAPPERS for base in bases)


# By name, because importing the classes would cost more than comparing names.
_WRAPPERS = frozenset(
    {
        "torch._dynamo.eval_frame.OptimizedModule",
        "torch.nn.parallel.distributed.DistributedDataParallel",
        "torch.nn.parallel.data_parallel.DataParallel",
        "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel",
        "torch.distributed.fsdp._fully_shard._fully_shard.FSDPModule",
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.ActivationWrapper",
        "torch.fx.graph_module.GraphModule",
        "torch.jit._script.ScriptModule",
    }
)
