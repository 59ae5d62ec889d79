"""Makes the body of a region for Inductor, once for all calls in a graph: loads it from the cache or lowers it."""

from __future__ import annotations

import logging
import types
from typing import Any
from unittest.mock import patch

import torch
import torch.fx
from torch._dynamo.utils import counters
from torch._inductor import ir
from torch._inductor.regions.cache import (
    BodyBypass,
    BypassReason,
    CachedBody,
    check_lowered,
    described,
    key_of,
    load,
    save,
)
from torch._inductor.regions.cache_symbols import Symbols
from torch._inductor.regions.donation import donate
from torch._inductor.regions.memory import RegionMemory, analyse
from torch._inductor.regions.object_code import BODY_NAME, BodyCode, NotApartError, compile_alone, link
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._ordered_set import OrderedSet


log = logging.getLogger(__name__)


def prepare(subgraph: Any, examples: list[Any]) -> None:
    """Gives ``subgraph`` its body and the data about its memory that calls need."""
    around = V.graph
    _resolve_conj(subgraph.graph_module)
    try:
        symbols = Symbols(around._shape_env)
        key = key_of(subgraph.graph_module, examples, around, symbols)
        body = Body(subgraph, examples, around, key, symbols)
    except BodyBypass as refusal:
        _tell(subgraph.name, refusal)
        subgraph.graph, subgraph.region_memory = _lower(subgraph, examples, around)
        return
    subgraph.graph, subgraph.region_memory = body, body.kept.memory


def _resolve_conj(module: torch.fx.GraphModule) -> None:
    """Makes a body return no tensor with the conj bit: Inductor passes on memory, which does not hold the bit."""
    output = module.graph.output_node()
    for node in output.all_input_nodes:
        value = node.meta.get("val")
        # An operand is in memory already.
        if isinstance(value, FakeTensor) and value.is_conj() and node.op != "placeholder":
            with module.graph.inserting_before(output), value.fake_mode:
                resolved = module.graph.call_function(torch.ops.aten.clone.default, (node,))
                resolved.meta = {**node.meta, "val": value.resolve_conj()}
            output.replace_input_with(node, resolved)


def _lower(subgraph: Any, examples: list[Any], around: Any, name: str | None = None) -> tuple[Any, RegionMemory]:
    counters["region_bodies"]["lowered"] += 1
    body = around.make_subgraph(gm=subgraph.graph_module, example_inputs=examples, subgraph_name=subgraph.name)
    if name is not None:
        body.name = name
    # These indices refer to inputs of the graph around the calls. In the body they would permit writes to the arguments
    # at the same indices, which the caller or a later call still needs. Code generation decides which arguments the
    # body may write to (regions/donation.py).
    body.bw_donated_idxs = None
    body.is_body_of_region = True
    # Kernels are named after the nodes they come from, which are not those of the graph around the call.
    with V.set_graph_handler(body), patch.object(ir.IRNode, "_current_origins", OrderedSet()):
        body.run(*examples)
        memory = analyse(body)
    return body, memory


def _tell(name: str, refusal: BodyBypass) -> None:
    counters["region_bodies"][refusal.reason.name] += 1
    log.info("the body %s is not kept: %s", name, refusal)


class Body:
    """Stands in for a lowered graph: provides what the graph around a body reads."""

    cpp_wrapper = fx_wrapper = False

    def __init__(self, subgraph: Any, examples: list[Any], around: Any, key: str, symbols: Symbols) -> None:
        """Loads the body or lowers it. Raises ``BodyBypass``."""
        self.name = around.qualify_name(subgraph.name)
        self.example_inputs = examples
        self.subgraph = subgraph
        self.around = around
        self.key = key
        self.symbols = symbols
        self.lowered: Any = None
        results = subgraph.graph_module.graph.output_node().args[0]
        if (kept := load(key, len(results), len(examples), symbols)) is None:
            kept = CachedBody(self._lower_apart(), {}, symbols.learned())
        else:
            counters["region_bodies"]["found"] += 1
        self.kept = kept

    def _lower_apart(self) -> RegionMemory:
        self.lowered, memory = _lower(self.subgraph, self.example_inputs, self.around, BODY_NAME)
        check_lowered(self.lowered, memory)
        described(memory, self.symbols)  # raises where it could not be cached
        return memory

    def codegen(self) -> tuple[Any, None]:
        """The text of the body's function and kernels, for the program that is being written."""
        return types.SimpleNamespace(value=self._text()), None

    def _text(self) -> str:
        # Another call, which is lowered meanwhile, or the graph around may have asked for more of a size.
        rests_on = ",".join(map(str, self.subgraph.donated)) + self.symbols.learned_since()
        code = self.kept.codes.get(rests_on)
        if code is None:
            try:
                code = self._compiled()
            except BodyBypass as refusal:
                _tell(self.subgraph.name, refusal)
                return self._text_in_place()
            self.kept.codes[rests_on] = code
            save(self.key, self.kept, self.symbols)
        else:
            self.symbols.guard(code.guards)
        return link(code.mapped(self.symbols.names_in), self.around.wrapper_code, self.name)

    def _compiled(self) -> BodyCode:
        if self.lowered is None:
            self._check_again(self._lower_apart())
        donate(self.lowered, self.subgraph.donated)
        try:
            code = compile_alone(self.lowered)
        except NotApartError as error:
            raise BodyBypass(BypassReason.CODE, error) from error
        # Checked again, because code generation may lower more nodes.
        check_lowered(self.lowered, self.kept.memory)
        code.guards = self.symbols.learned()
        return code.mapped(self.symbols.numbers_in)

    def _text_in_place(self) -> str:
        """Code for this program only. The body is lowered again, because a graph's code can be generated only once."""
        body, memory = _lower(self.subgraph, self.example_inputs, self.around)
        self._check_again(memory)
        donate(body, self.subgraph.donated)
        with V.set_graph_handler(body):
            return str(body.codegen()[0].value)

    def _check_again(self, memory: RegionMemory) -> None:
        """Callers were lowered for the body that was found or lowered first."""
        if described(memory, self.symbols) != described(self.kept.memory, self.symbols):
            raise AssertionError(f"the body {self.name} was lowered to {memory}, and is known as {self.kept.memory}")
