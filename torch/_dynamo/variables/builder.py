"""Overlay of torch._dynamo.variables.builder: a plain parameter becomes an input of the graph in one short step.

A deep model has thousands of parameters, and nearly all are plain: dense, of static sizes, of no subclass.  Stock tests
each parameter for all that a tensor can be.  This file makes only what a plain one needs, and leaves others to stock.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import config
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.regions.frame import PerFrame
from torch._dynamo.regions.stack_trace import proxies_of
from torch._dynamo.source import GradSource, NumpyTensorSource, is_constant_source
from torch._dynamo.utils import get_static_address_type, get_unique_name_wrt, is_parameter_freezing
from torch._dynamo.variables.builder import (
    GraphArg,
    TrackedFake,
    _extract_tensor_dict,
    get_dynamic_sources,
    get_specialized_props,
)
from torch._dynamo.variables.tensor import TensorVariable
from torch._guards import Source
from torch._prims_common import _memory_formats
from torch._subclasses.plain_parameter import is_plain_parameter
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatefulSymbolicContext
from torch.utils.weak import TensorWeakRef

from torch_regions.overlay import replaces, stock


_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9]+")


def _may_lift(output: Any) -> bool:
    """Whether plain parameters become inputs of static sizes in this frame.  Once a frame: reading options is slow."""
    return bool(
        config.force_parameter_static_shapes
        and config._shapes_spec is None
        and not (config.install_free_tensors or config.prepare_freezing or is_parameter_freezing())
        and not output.export
        and not get_dynamic_sources()
    )


_MAY_LIFT: PerFrame[bool] = PerFrame(_may_lift)


def _is_lifted(output: Any, source: Source, value: torch.Tensor) -> bool:
    """Whether a plain parameter at ``source`` becomes an input of the graph, and is the first one for its tensor."""
    where = source.guard_source
    return (
        not (where.is_specialized_nn_module() or where.is_fsdp_module())
        and not isinstance(source, (GradSource, NumpyTensorSource))
        and not is_constant_source(source)
        and source not in output.input_source_to_var
        and value not in output.tracing_context.tensor_to_context
        and get_static_address_type(value) != "guarded"
    )


def _static_sizes(value: torch.Tensor, source: Source) -> StatefulSymbolicContext:
    ndim = value.dim()
    return StatefulSymbolicContext(
        dynamic_sizes=[DimDynamic.STATIC] * ndim,
        dynamic_strides=[DimDynamic.INFER_STRIDE] * ndim,
        constraint_sizes=[None] * ndim,
        constraint_strides=[None] * ndim,
        view_base_context=None,
        tensor_source=source,
        shape_env_to_source_to_symbol_cache={},
    )


def _input(tracer: Any, name: str, fake: torch.Tensor) -> torch.fx.Proxy:
    """Adds the next input of the graph, with static sizes."""
    tracer._input_versions_at_beginning.append(fake._version)
    name = get_unique_name_wrt(name, tracer._used_names)
    inputs = tracer.input_name_to_proxy
    last = inputs[next(reversed(inputs))].node if inputs else None
    with tracer.graph.inserting_after(last) if inputs else tracer.graph.inserting_before(None):
        proxy: torch.fx.Proxy = tracer.create_proxy(
            "placeholder", name, (), {}, type_expr=torch.nn.Parameter, proxy_factory_fn=proxies_of(tracer)
        )
    proxy.node.meta["example_value"] = fake
    inputs[name] = proxy
    tracer._used_names.add(name)
    return proxy


def _props(value: torch.Tensor) -> dict[str, Any]:
    """The properties of a plain parameter's tracker, as ``TensorVariable.specialize`` would read them off its fake."""
    return {
        "dtype": value.dtype,
        "device": value.device,
        "layout": torch.strided,
        "ndim": value.ndim,
        "requires_grad": value.requires_grad,
        "is_nested": False,
        "is_quantized": False,
        "is_sparse": False,
        "class_type": torch.nn.Parameter,
        "has_grad_fn": False,
        "_size": tuple(value.size()),
        "stride": tuple(value.stride()),
        "is_contiguous": tuple(f for f in _memory_formats if value.is_contiguous(memory_format=f)),
    }


def _lift(builder: Any, value: torch.Tensor) -> TensorVariable:
    tx, source = builder.tx, builder.source
    output = tx.output
    builder.mark_static_input(value, guard=False)
    context = _static_sizes(value, source)
    with enable_python_dispatcher():
        fake = tx.fake_mode.from_tensor(value, source=source, symbolic_context=context)
    output.tracing_context.tensor_to_context[value] = context
    output.input_source_to_sizes_strides[source] = {"size": fake.size(), "stride": fake.stride()}
    output.tracked_fakes_id_to_source[id(value)].append(source)
    name = _NOT_IN_NAMES.sub("_", source.name)
    if all(type(number) is int for number in (*fake.size(), *fake.stride())):
        # No symbol has to be bound, and no guard of the shape environment concerns it.
        proxy, props = _input(output.root_tracer, name, fake), _props(value)
    else:
        output.tracked_fakes.append(TrackedFake(fake, source, context))
        proxy = output.root_tracer.create_graph_input(name, type(value), fake, source=source)
        props = get_specialized_props(TensorVariable, tx, fake, None)
    tracker = TensorVariable(proxy, source=source, **props)
    output.side_effects.track_object_existing(value, tracker)
    builder.install_guards(functools.partial(GuardBuilder.TENSOR_MATCH, value=TensorWeakRef(value)))
    output.input_source_to_var[source] = tracker
    proxy.node.meta["tensor_dict"] = _extract_tensor_dict(value)
    proxy.node.meta["grapharg"] = GraphArg(source, value, False, fake)
    return tracker


@replaces("VariableBuilder.wrap_tensor")
def wrap_tensor(self: Any, value: torch.Tensor) -> Any:
    output = self.tx.output
    if _MAY_LIFT.of(output) and is_plain_parameter(value) and _is_lifted(output, self.source, value):
        return _lift(self, value)
    return stock("torch._dynamo.variables.builder:VariableBuilder.wrap_tensor")(self, value)
