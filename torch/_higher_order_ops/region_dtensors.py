"""Calls of regions that take or return DTensors.

Note [A body of local tensors]
AOTAutograd traces a program of DTensors as one of their local tensors: the subclass acts while its operators are
traced, so that the collectives of a redistribution are operators of the graph. A call of a region has to take part in
that, but the operator ``invoke_subgraph`` asks the modes that trace before the classes of its operands, and they would
take a DTensor for one plain tensor. So below autograd a call becomes one on local tensors. Its body is traced once for
each layout of its operands: mesh, placements and global metadata are constants of it, as in the flat graph.

The body is traced above autograd all the same, with grad mode on where autograd records the call. There, operators that
are compositions reach the subclass in their parts, of which it decides one by one how to redistribute operands.

Autograd records the call on DTensors. So the gradients that it passes to the backward are those of the flat
program, with the placements that their readers left them with (a partial sum, say), and nothing is redistributed for
the sake of a call. A joint body is traced for each layout of these gradients, and has a name of its own. A joint body
that sees where its operands begin in their storages is traced here, too, because stock's stand-ins all begin at 0.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch._guards import detect_fake_mode
from torch._higher_order_ops.region_autocast import above_autograd
from torch._higher_order_ops.region_metadata import OUTLINED, body_of, region_cache
from torch._higher_order_ops.utils import (
    _from_fun,
    _maybe_reenter_make_fx,
    clone_outputs_aliasing_inputs,
    get_dummy_aot_autograd_config,
    prepare_fw_with_masks,
    suspend_functionalization,
)
from torch._library.fake_class_registry import maybe_to_fake_obj
from torch._subclasses.functional_tensor import disable_functional_mode
from torch.fx import GraphModule
from torch.fx.dtensor_facts import Mesh, is_dtensor, is_mesh, make_dtensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.fx.offset_facts import sees_storage


# Key in the ``meta`` of a body of local tensors: the layouts of what the program's body returns.
_RESULTS = "region_layouts"
# Between the name of a body and the number of the layouts of its results' gradients.
LAYOUTS = "_for_layouts_"


class _Sharded(NamedTuple):
    """What a DTensor is, but for its local tensor."""

    mesh: Mesh
    context: Any  # placements, their order and global metadata, and whether it requires grad
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def with_local(self, local: torch.Tensor) -> torch.Tensor:
        return make_dtensor(local, self.mesh.value, self.context, torch.Size(self.size), self.stride)


Layout: TypeAlias = _Sharded | Mesh | None  # of a DTensor, of a mesh, of anything else


def takes_dtensors(subgraph: Any, operands: Sequence[Any]) -> bool:
    """Whether this is a call of a region that takes or makes DTensors."""
    body = body_of(subgraph)
    if not isinstance(body, GraphModule) or not (OUTLINED in body.meta or _RESULTS in body.meta):
        return False
    return any(is_dtensor(value) or is_mesh(value) for value in operands)


def is_recorded(operands: Sequence[Any]) -> bool:
    """Whether autograd records a call, which then is one on DTensors; below autograd it is one on local tensors."""
    below = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)
    requires_grad = any(isinstance(value, torch.Tensor) and value.requires_grad for value in operands)
    return requires_grad and not below and torch.is_grad_enabled()


def _take_apart(values: Sequence[Any]) -> tuple[list[Any], tuple[Layout, ...]]:
    """What a body of local tensors takes or returns for ``values``, and their layouts."""
    plain: list[Any] = []
    layouts: list[Layout] = []
    for value in values:
        if is_dtensor(value):
            _, context = value.__tensor_flatten__()
            layouts.append(_Sharded(Mesh(value.device_mesh), context, tuple(value.shape), value.stride()))
            plain.append(value._local_tensor)
        elif is_mesh(value):
            layouts.append(Mesh(value))
        else:
            layouts.append(None)
            plain.append(value)
    return plain, tuple(layouts)


def _put_together(plain: Sequence[Any], layouts: Sequence[Layout]) -> list[Any]:
    """The values of which ``_take_apart`` has made ``plain``."""
    left = iter(plain)
    return [
        layout.value if isinstance(layout, Mesh) else layout.with_local(next(left)) if layout else next(left)
        for layout in layouts
    ]


def call_on_local_tensors(call: Callable[..., Any], subgraph: Any, identifier: Any, operands: Sequence[Any]) -> Any:
    """Makes a call of a region by ``call``, on local tensors; returns DTensors where the body does."""
    plain, layouts = _take_apart(operands)
    body = _local_body(subgraph, plain, layouts)
    results = call(body, identifier, *plain)
    # Where the caller has a mesh itself, results have the same, not the one that the body was traced with.
    known = {each: each for each in map(_mesh_of, layouts) if each is not None}
    return tuple(_put_together(results, _with_meshes(body.meta[_RESULTS], lambda mesh: known.get(mesh, mesh))))


def _local_body(subgraph: Any, plain: Sequence[Any], layouts: tuple[Layout, ...]) -> GraphModule:
    """The body of local tensors that ``subgraph`` is for operands with these layouts."""
    if isinstance(subgraph, GraphModule) and _RESULTS in subgraph.meta:
        return subgraph  # a joint body, which is traced so
    cache = region_cache()
    bodies: dict[Any, GraphModule] = {} if cache is None else cache.local_bodies
    key = (subgraph, layouts)
    if key not in bodies:
        bodies[key] = _traced(lambda values: subgraph(*values), plain, layouts, _above_autograd)
    return bodies[key]


def _traced(
    run: Callable[[list[Any]], Sequence[Any]],
    plain: Sequence[Any],
    layouts: tuple[Layout, ...],
    state: Callable[[], contextlib.AbstractContextManager[None]],
    decompositions: Any = None,
) -> GraphModule:
    """The graph of local tensors of ``run``, which takes and returns the program's values, traced in ``state``."""
    layouts = _with_fake_meshes(layouts)
    made: list[tuple[Layout, ...]] = []

    def on_local_tensors(*values: Any) -> tuple[Any, ...]:
        results, layouts_of_results = _take_apart(run(_put_together(values, layouts)))
        made.append(layouts_of_results)
        # A gradient may be that of a result as it is. A body itself returns no memory of its operands.
        return tuple(map(clone_outputs_aliasing_inputs(values), results))

    with suspend_functionalization(), disable_functional_mode(), disable_proxy_modes_tracing(), state():
        trace = _maybe_reenter_make_fx(on_local_tensors, subgraph_decomp_table=decompositions)
        traced: GraphModule = trace(*map(_stand_in, plain))
    _finish(traced, made[-1])
    return traced


def _begins_elsewhere(value: Any) -> bool:
    """Whether a tensor may not begin at 0 in its storage. To ask a symbolic offset would add a guard."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    offset = value.storage_offset()
    return isinstance(offset, torch.SymInt) or offset != 0


def _stand_in(value: Any) -> Any:
    """A tensor like ``value`` to trace with, of no functional class, that begins where ``value`` does."""
    made = _from_fun(value)
    if not _begins_elsewhere(value):
        return made
    offset = value.storage_offset()
    length = offset + made.untyped_storage().nbytes() // made.element_size()
    storage = torch.empty(length, dtype=made.dtype, device=made.device)
    return storage.as_strided(made.shape, made.stride(), offset).requires_grad_(made.requires_grad)


def _finish(body: GraphModule, layouts: tuple[Layout, ...]) -> None:
    """Leaves of a traced body what it computes.

    The subclass asks for metadata by operators on tensors of its own, whose results nothing reads. An in-place detach
    changes what autograd knows of a tensor, and autograd was above when the body was traced.
    """
    for node in body.graph.find_nodes(op="call_function", target=torch.ops.aten.detach_.default):
        node.replace_all_uses_with(node.args[0])
        body.graph.erase_node(node)
    body.graph.eliminate_dead_code()
    body.recompile()
    # A call returns what autograd does not know yet.
    body.meta[_RESULTS] = tuple(
        each._replace(context=(*each.context[:-1], False)) if isinstance(each, _Sharded) else each for each in layouts
    )


def _mesh_of(layout: Layout) -> Mesh | None:
    return layout.mesh if isinstance(layout, _Sharded) else layout


def _with_meshes(layouts: Iterable[Layout], stand_in: Callable[[Mesh], Mesh]) -> tuple[Layout, ...]:
    """The layouts with other objects for their meshes."""
    return tuple(
        each._replace(mesh=stand_in(each.mesh)) if isinstance(each, _Sharded) else each and stand_in(each)
        for each in layouts
    )


def _with_fake_meshes(layouts: tuple[Layout, ...]) -> tuple[Layout, ...]:
    """The layouts with meshes as AOTAutograd passes them to a graph, so that reading one leaves no trace."""
    mode = detect_fake_mode()
    return _with_meshes(layouts, functools.cache(lambda each: Mesh(maybe_to_fake_obj(mode, each.real))))


@contextlib.contextmanager
def _under(included: Any, excluded: Any, grad: bool) -> Iterator[None]:
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.set_grad_enabled(grad):
        yield


def _above_autograd() -> contextlib.AbstractContextManager[None]:
    """As where the call was made: below autograd, autograd is recording it."""
    below = torch._C._dispatch_tls_local_exclude_set().has(torch._C.DispatchKey.AutogradOther)
    return _under(*above_autograd(), grad=below or torch.is_grad_enabled())


def trace_joint(
    subgraph: Any, count: int, operands: Sequence[Any], keys: tuple[Any, Any], decompositions: Any
) -> GraphModule | None:
    """The joint body of a call; None if stock traces the same one.

    Stock does not if an operand is a DTensor or a mesh, or begins elsewhere in its storage and an operator sees that:
    stock traces with tensors that begin at 0.

    ``operands``: ``count`` operands of the forward, then the gradients. ``keys``: the dispatch keys of the thread to
    include and to exclude.
    """
    plain, layouts = _take_apart(operands)
    if not any(layouts) and not (any(map(_begins_elsewhere, plain)) and sees_storage(body_of(subgraph))):
        return None
    from torch._functorch.aot_autograd import create_joint

    def program(*values: Any) -> Any:
        with torch.fx.traceback.preserve_node_meta():
            return torch.fx.Interpreter(subgraph).run(*values)

    forward = prepare_fw_with_masks(program if isinstance(subgraph, GraphModule) else subgraph)
    joint = create_joint(forward, aot_config=get_dummy_aot_autograd_config())

    def run(values: list[Any]) -> list[Any]:
        outs, grads = joint(values[:count], values[count:])
        return [*grads, *outs]

    return _traced(run, plain, layouts, lambda: _under(*keys, grad=True), decompositions)


def name_for_gradients(gradients: Sequence[Any]) -> str:
    """A suffix for a body's name, so that its backward is traced anew for DTensors of other layouts; empty for none."""
    _, layouts = _take_apart([g for g in gradients if g is not None])
    cache = region_cache()
    if cache is None or not any(layouts):
        return ""
    return f"{LAYOUTS}{cache.layouts_of_gradients.setdefault(layouts, len(cache.layouts_of_gradients))}"
