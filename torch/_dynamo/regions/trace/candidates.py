"""Which calls of modules become regions by themselves: the policy behind ``automatic_nested_compile_regions``.

Note [A candidate repeats]
A call is worth a region if another call of the frame can be stamped out of it.  That cannot be known
before both are traced, but what can be known is cheap: two modules with the same *structure* (classes and
metadata of everything in them, names included) nearly always trace alike, two with different structures never
do.  So a module is a candidate where its scope holds another module of the same structure, or called
one of that structure before.  A scope is the frame, or the body of a candidate that is being traced.

- The outermost of these are the candidates: a block, not its attention, though attention repeats as well.  A module
  that repeats inside candidates only is none (the last norm of a model whose blocks have norms).
- Inside a candidate there must be several, of some size: the candidate itself is traced only once.
- After four more traces than reuses, or a permanent miss, a structure is inlined for the rest of the frame.  What is in
  it counts as in a candidate: the search of the finished graph may find the whole.

Being wrong costs time only: what a candidate's call may be reused for is not decided here.
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
from torch._dynamo.regions.outcomes import ReuseMissReason
from torch._dynamo.regions.trace.objects import find_in_class, is_a, modules_of, own_attributes
from torch._dynamo.regions.trace.substitution import resolver
from torch._guards import ChainedSource


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import Source


Module = torch.nn.Module
# Classes of tensors whose metadata is torch's own.
_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

# Modules in a block, itself included. To trace a single one costs little more than to ask whether it was traced
# before, and containers of torch's own with one thing in them are no more than that.
MIN_MODULES = 2
MIN_MODULES_OF_TORCH = 3
# Modules in a block inside another block, and how many of them that one must hold: it is traced once.
MIN_INNER_MODULES = 3
MIN_INNER_REPEATS = 4
# How often more a structure may be traced than reused before it is left flat: two layers may alternate, and the
# first of them may differ from the rest.
MAX_TRACES_AHEAD = 4
# Misses that are permanent: every call of a module with the same structure has them.
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


@dataclasses.dataclass
class _Scope:
    """The frame, or the body of a candidate."""

    # ids of the modules that are candidates here.
    candidates: set[int] = dataclasses.field(default_factory=set)
    # Structures of the modules that were called here.
    called: set[int] = dataclasses.field(default_factory=set)


class Candidates:
    """The candidates of one frame."""

    def __init__(self) -> None:
        self._structures = _Structures()
        self._scopes = [_Scope()]
        # ids of the modules from which candidates were looked for.
        self._searched: set[int] = set()
        self._refused: set[int] = set()
        # structure -> how many more calls were traced than reused
        self._ahead: collections.Counter[int] = collections.Counter()

    def accepts(self, tx: InstructionTranslatorBase, module: Module, source: Source) -> bool:
        """Whether a call of ``module``, which is found at ``source``, is to be a region."""
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
        again = structure in scope.called
        scope.called.add(structure)
        return again and (not inner or _holds(module, MIN_INNER_MODULES))

    @contextlib.contextmanager
    def inside(self, module: Module) -> Iterator[None]:
        """Meanwhile, a call of ``module`` is traced."""
        self._scopes.append(_Scope(self._repeated(modules_of(module), _is_inner_block, MIN_INNER_REPEATS)))
        try:
            yield
        finally:
            self._scopes.pop()

    def has_refused(self, module: Module) -> bool:
        """Whether a module like this one was tried and is left flat: what it is made of had better stay together."""
        return bool(self._refused) and _is_block(module) and self._structures.of(module) in self._refused

    def learn(self, module: Module, reused: bool, miss: ReuseMissReason | None) -> None:
        """Notes what became of a call of ``module``."""
        structure = self._structures.of(module)
        self._ahead[structure] += -1 if reused else 1
        if miss in _FINAL or self._ahead[structure] >= MAX_TRACES_AHEAD:
            self.refuse(module)

    def refuse(self, module: Module) -> None:
        """Leaves modules like this one flat for the rest of the frame."""
        self._refused.add(self._structures.of(module))

    def _search(self, tx: InstructionTranslatorBase, module: Module, source: Source) -> None:
        if id(module) in self._searched:
            return
        found: list[Module] = []
        for holder in _holders(tx, module, source):
            found += _modules_in(holder)
        self._scopes[0].candidates |= self._repeated(found, _is_block, 2, self._searched)

    def _repeated(
        self, tops: Iterable[Module], is_block: Any, least: int, searched: set[int] | None = None
    ) -> set[int]:
        """ids of the outermost blocks in ``tops`` of whose structure there are at least so many outside of others.

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
    """Numbers modules by their structure: equal numbers, equal classes and metadata."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        # id of a module -> it and its number; it is kept, so that no id is used again.
        self._known: dict[int, tuple[Module, int]] = {}

    def of(self, module: Module) -> int:
        """The number of a module, as it was when first asked for."""
        known = self._known.get(id(module))
        if known is None:
            known = self._known[id(module)] = (module, self._number(module))
        return known[1]

    def _number(self, module: Module) -> int:
        own = own_attributes(module)
        # A tensor of the program's class may answer with code of its own.
        tensors = tuple(
            (name, type(t) in _TENSORS and (type(t), t.shape, t.dtype, t.requires_grad))
            for part in ("_parameters", "_buffers")
            for name, t in (own.get(part) or {}).items()
        )
        parts = tuple((name, None if m is None else self.of(m)) for name, m in (own.get("_modules") or {}).items())
        key = (id(type(module)), own.get("training"), tensors, parts)
        return self._numbers.setdefault(key, len(self._numbers))


def _holders(tx: InstructionTranslatorBase, module: Module, source: Source) -> Iterator[Any]:
    """The module that ``source`` begins at, and the lists and dicts between ``module`` and the next module above it."""
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
    """The modules that are ``chosen`` and in no other chosen one."""
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


def _holds(module: Module, least: int) -> bool:
    """Whether there are ``least`` modules in ``module``, itself included."""
    return sum(1 for _ in itertools.islice(_all_modules(module), least)) == least


def _all_modules(module: Module) -> Iterator[Module]:
    """``module`` and all modules in it, each once."""
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
    """Whether calls of ``module`` may be regions at all: it is large enough, and neither wrapped nor marked."""
    kind: Any = type(module)
    own = own_attributes(module)
    if not own.get("_modules") or _is_wrapper(kind):
        return False
    forward = own.get("forward", find_in_class(kind, "forward"))
    forward = forward.__func__ if type(forward) is types.MethodType else forward
    if "__marked_compile_region_fn__" in (own_attributes(forward) or ()):
        return False  # the user has said what is a region
    of_torch = (kind.__module__ or "").startswith("torch.nn.")
    return _holds(module, MIN_MODULES_OF_TORCH if of_torch else MIN_MODULES)


def _is_wrapper(kind: type) -> bool:
    """Whether a class wraps a module for what happens around its call; what it wraps may be a region."""
    return any(f"{base.__module__}.{base.__qualname__}" in _WRAPPERS for base in kind.__mro__)


# Named, because importing them costs more than comparing names.
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
