"""The patches of the exported series: the subject of each, its modules and its tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_regions._errors import OverlayError


if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class System:
    """One patch. A module or a test belongs to the system that lists the longest prefix of its name."""

    title: str
    # What is wrong without the patch, and what it does. The message goes on with the rows of the manifest.
    why: str
    modules: tuple[str, ...]
    # Prefixes of paths under `test/`
    tests: tuple[str, ...]


_TRACE = "torch._dynamo.regions.trace."
_OUTLINE = "torch._dynamo.regions.outline."

# In the order in which they apply: a patch depends on those before it.
SYSTEMS = (
    System(
        "State of a frame, and the outcome of each region call",
        "Each call of a region is traced, reused or inlined, for a named reason. Counters, logs and reports get all of "
        "them from one record for each compile; what is known of a frame is dropped with it.",
        (
            "torch._dynamo.regions",
            "torch._dynamo.regions.facts",
            "torch._dynamo.regions.frame",
            "torch._dynamo.regions.options",
            "torch._dynamo.regions.outcomes",
            "torch._dynamo.regions.release",
            "torch._dynamo.regions.s",  # size_history, source_names, stack_room, stack_trace, switch
            "torch.utils._release",
        ),
        ("dynamo/regions/test_source_names",),
    ),
    System(
        "Operators and global state as keys",
        "Two operators are one if they do the same: the key of a node has its target, its constants with their "
        "types, what its operands look like, and the global state that it is recorded under. What an operator "
        "writes or draws is asked of its schema, in one place, for Dynamo and for the compile cache.",
        (
            "torch._dynamo.regions.keys",
            "torch._dynamo.regions.policies",
            "torch._dynamo.regions.renamed",
            "torch._higher_order_ops.metadata_keys",
            "torch.fx.dtensor_facts",
            "torch.fx.offset_facts",
            "torch.fx.operator_facts",
            "torch.utils._ambient_state",
        ),
        (
            "dynamo/regions/test_keys",
            "dynamo/regions/outline/test_lazy_bits",
            "fx/test_dtensor_facts",
            "fx/test_offset_facts",
            "fx/test_operator_facts",
        ),
    ),
    System(
        "Trace bodies with wrap semantics",
        "A body that is traced by itself returns values, each once. Inputs and captures that it only returns go "
        "around the call, so that aliases are those of the program.",
        ("torch._dynamo.subgraph_", "torch._dynamo.variables.higher_order_ops"),
        ("dynamo/test_subgraph_", "dynamo/variables/test_higher_order_ops"),
    ),
    System(
        "Repeated runs of a graph, and what may be in one",
        "Repeats are found by a suffix array over the keys of nodes, in near-linear time; stock takes three times as "
        "long on 8,000 operators. Which operators may be in a region, and what crosses its boundary, is decided apart.",
        (
            _OUTLINE.rstrip("."),
            f"{_OUTLINE}copies",
            f"{_OUTLINE}graph_view",
            f"{_OUTLINE}islands",
            f"{_OUTLINE}legality",
            f"{_OUTLINE}repeats",
            f"{_OUTLINE}spans",
        ),
        ("dynamo/regions/outline/test_legality", "dynamo/regions/outline/test_repeats"),
    ),
    System(
        "Find repeated regions",
        "Regions are runs of operators in program order, found by a suffix array over the keys of nodes in near-linear "
        "time. Stock grows regions by source line, merges operators that differ in a constant or in "
        "wiring, and takes three times as long on 8,000 operators.",
        (
            "torch._dynamo.graph_region_tracker",
            f"{_OUTLINE}find",
            f"{_OUTLINE}fit",
            f"{_OUTLINE}identical",
            f"{_OUTLINE}policy",
        ),
        ("dynamo/test_graph_region_tracker",),
    ),
    System(
        "Outline repeated regions",
        "A region becomes a call of invoke_subgraph only where results, aliasing, writes and random numbers stay "
        "those of the flat program; the lint mode recomputes that for each call.",
        (
            "torch._dynamo.graph_deduplication",
            "torch._dynamo.output_graph",
            f"{_OUTLINE}account",
            f"{_OUTLINE}names",
            f"{_OUTLINE}no_regions",
            f"{_OUTLINE}outliner",
            f"{_OUTLINE}symbols",
        ),
        (
            "dynamo/test_graph_deduplication",
            "dynamo/regions/outline/test_policy",
            "dynamo/regions/outline/test_symbols",
        ),
    ),
    System(
        "Cut out the regions that a program calls",
        "A marked call is traced flat, with its operators noted, and cut out at the end of the frame: what the "
        "program does around and inside of the call means what it means without the mark.",
        (_OUTLINE, f"{_TRACE}flat"),
        ("dynamo/regions/test_stack_room", "dynamo/regions/outline/test_names"),
    ),
    System(
        "Constants that are read when the program asks for them",
        "A layer's number, or the index of a loop, is deferred: what the program computes of it is an expression, and "
        "an index finds the element of each call, to read it or to store to it. Only a value that the program looks at "
        "is compared.",
        (
            _TRACE.rstrip("."),
            f"{_TRACE}containers",
            f"{_TRACE}deferred",
            f"{_TRACE}element_stores",
            f"{_TRACE}expressions",
            "torch._dynamo.variables.builtin",
            "torch._dynamo.variables.lazy",
            "torch._dynamo.variables.object_protocol",
        ),
        (
            "dynamo/regions/trace/test_deferred",
            "dynamo/regions/trace/test_element_stores",
            "dynamo/regions/trace/test_expressions",
            "dynamo/regions/trace/test_opened_containers",
        ),
    ),
    System(
        "What a traced call read, and what became of it",
        "Everything that a call reached while it was traced, with the constants that it looked at: the read set "
        "that a later call is compared with.",
        (
            f"{_TRACE}differences",
            f"{_TRACE}events",
            f"{_TRACE}read_set",
            f"{_TRACE}state",
            f"{_TRACE}stored_weights",
            f"{_TRACE}values",
            "torch._dynamo.side_effects",
            "torch._dynamo.variables.script_object",
        ),
        (
            "dynamo/regions/trace/test_differences",
            "dynamo/regions/trace/test_read_set",
            "dynamo/regions/trace/test_stored_weights",
        ),
    ),
    System(
        "Objects of the program, and forward hooks of layers",
        "What a call holds is read without running the program's code, or the call is traced. A forward hook is an "
        "object of each layer's own, under a number of its own. What tracing reads of it has guards, so hooks are "
        "compared by their code, and a guard on a number is made with the other hook's number.",
        (f"{_TRACE}function_code", f"{_TRACE}module_hooks", f"{_TRACE}objects"),
        ("dynamo/regions/trace/test_module_hooks", "dynamo/regions/trace/test_objects"),
    ),
    System(
        "Guards and sources of another call",
        "The read set of one call with the sources of another: each guard is the same, installed again, an alias, "
        "or a named reason not to reuse. Tables decide for each kind of guard, source and value that Dynamo has.",
        (
            f"{_TRACE}guard_facts",
            f"{_TRACE}operands",
            f"{_TRACE}plan",
            f"{_TRACE}skeleton",
            f"{_TRACE}sources",
            f"{_TRACE}substitution",
        ),
        (
            "dynamo/regions/trace/test_lookup",
            "dynamo/regions/trace/test_decisions",
        ),
    ),
    System(
        "Symbols and tracked objects of another call",
        "A symbolic float is an operand of each call, with the guards that tracing the call would make of it, and so "
        "has each call symbols of sizes of its own. What Dynamo builds of another call's tensors and numbers must be "
        "what it built of the traced call's. What the call read is known to the frame; what it changed is a recipe. "
        "What it read of the frame's own changes must be there unchanged.",
        (
            f"{_TRACE}argument_sources",
            f"{_TRACE}built",
            f"{_TRACE}effects",
            f"{_TRACE}floats",
            f"{_TRACE}own_symbols",
            f"{_TRACE}pending",
            f"{_TRACE}symbol_guards",
            f"{_TRACE}tracked",
        ),
        (
            "dynamo/regions/trace/test_dynamic_number_of_known_object",
            "dynamo/regions/trace/test_floats",
            "dynamo/regions/trace/test_own_symbols",
            "dynamo/regions/trace/test_pending",
            "dynamo/regions/trace/test_symbol_guards",
            "dynamo/regions/trace/test_tracked",
        ),
    ),
    System(
        "Reuse traced regions",
        "A call whose read set is isomorphic to that of an earlier one becomes an operator without being traced; "
        "the frame knows afterwards what tracing would have left.",
        (
            "torch._guards",
            f"{_TRACE}fingerprint",
            f"{_TRACE}lookup",
            f"{_TRACE}recipe",
            f"{_TRACE}stamp",
        ),
        (
            "dynamo/regions/trace/test_stamp",
            "dynamo/regions/trace/test_read_set_changes",
            "dynamo/regions/outline/test_writes",
        ),
    ),
    System(
        "A mark is never an error",
        "A marked call is traced, reused or inlined, each with a reason; nothing that works without the mark "
        "fails with it.",
        ("torch._dynamo.variables.invoke_subgraph", "torch._dynamo.pgo", "torch._dynamo.trace_rules"),
        ("dynamo/variables/test_invoke_subgraph", "dynamo/regions/test_"),
    ),
    System(
        "Calls of regions, and verification",
        "A call is stamped out of an earlier one or traced. verify_region_reuse traces each call that could be reused "
        "and compares all that tracing leaves behind.",
        ("torch._dynamo.", _TRACE),
        ("dynamo/", "dynamo/regions/test_facts"),
    ),
    System(
        "Regions of repeated modules",
        "Under the flag, calls of modules that repeat are regions by themselves. Of a module whose hooks collect what "
        "all layers return, forward is one.",
        (f"{_TRACE}automatic", f"{_TRACE}candidates", "torch._dynamo.variables.nn_module"),
        ("dynamo/regions/trace/test_automatic", "dynamo/regions/trace/test_candidates"),
    ),
    System(
        "Calls with missing gradients, autocast and DTensors",
        "A result without a gradient leaves what leads to it out of the backward, as in the flat program. A body runs "
        "under the autocast of its calls. A call that takes DTensors is one on local tensors below autograd, which "
        "records it on DTensors. A body that writes to operands may write by operators composed of others. What a call "
        "saves for its backward is what it took, whatever the frame writes to it later.",
        (
            "torch._higher_order_ops.missing_gradients",
            "torch._higher_order_ops.region_autocast",
            "torch._higher_order_ops.region_dtensors",
            "torch._higher_order_ops.composed_writes",
            "torch._higher_order_ops.saved_operands",
        ),
        (
            "dynamo/regions/trace/test_dtensors",
            "higher_order_ops/test_missing_gradients",
            "higher_order_ops/test_region_autocast",
            "higher_order_ops/test_region_dtensors",
            "higher_order_ops/test_composed_writes",
            "higher_order_ops/test_saved_operands",
        ),
    ),
    System(
        "Autograd of regions",
        "What a body returns aliases is known to the graph around it, regions in regions are partitioned inside "
        "out, and the min-cut is not asked about values that can only be saved.",
        (
            "torch._functorch._aot_autograd.graph_",
            "torch._functorch._aot_autograd.region_",
            "torch._functorch.partitioners",
            "torch._higher_order_ops.",
        ),
        (
            "higher_order_ops/",
            "functorch/test_region",
        ),
    ),
    System(
        "The canonical key of AOTAutogradCache",
        "Stock's key is made from the code that a renamed graph prints: names count, and meaning below the code "
        "does not. This key is that of the graph's meaning; a miss says in what the nearest entry differs.",
        ("torch._functorch._aot_autograd.",),
        ("functorch/",),
    ),
    System(
        "Compiled bodies are kept and found again",
        "The object code of a body is kept under a key of what it was made from, and another process loads it.",
        (
            "torch._inductor.codecache",
            "torch._inductor.regions",
            "torch._inductor.regions.bodies",
            "torch._inductor.regions.cache",
            "torch._inductor.regions.cache_devices",
            "torch._inductor.regions.object_code",
            "torch._inductor.runtime.cache_",
        ),
        ("inductor/regions/test_cache", "inductor/regions/test_object_code"),
    ),
    System(
        "Compile the kernels of a CPU early and together",
        "Nearly all of the time in which the C++ compiler makes a kernel's library is the headers and the linker, and "
        "it begins when all of the program is written. Kernels that are known share a run of the compiler.",
        (
            "torch._inductor.cpu_vec_isa",
            "torch._inductor.regions.early_kernels",
            "torch._inductor.regions.kernel_units",
        ),
        ("inductor/regions/test_early_kernels", "inductor/regions/test_kernel_units", "inductor/test_cpu_vec_isa"),
    ),
    System(
        "Pay for a call of a region by its boundary",
        "A body is lowered once, its memory is planned once, and a call costs work in proportion to its operands "
        "and results.",
        (
            "torch._dynamo.variables.builder",
            "torch._functorch.",
            "torch._inductor.",
            "torch._inductor.regions.",
            "torch._subclasses.",
            "torch.fx.",
            "torch.utils.",
        ),
        ("inductor/", "subclasses/", "fx/", "utils/"),
    ),
)


def system_of(module: str) -> System:
    """The system of a module.  Raises ``OverlayError`` if none lists it."""
    return _nearest(module, module, [(system, system.modules) for system in SYSTEMS])


def system_of_test(path: str) -> System:
    """The system of a test, by its path under `test/`.  Raises ``OverlayError`` if none lists it."""
    return _nearest(path, f"test/{path}", [(system, system.tests) for system in SYSTEMS])


def _nearest(name: str, called: str, choices: Sequence[tuple[System, tuple[str, ...]]]) -> System:
    """The system that lists the longest prefix of ``name``."""
    found = [(len(prefix), system) for system, prefixes in choices for prefix in prefixes if name.startswith(prefix)]
    if not found:
        raise OverlayError(f"{called} belongs to no system: add it to SYSTEMS in _systems.py")
    return max(found, key=lambda each: each[0])[1]
