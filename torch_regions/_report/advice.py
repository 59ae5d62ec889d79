"""For each reason of each enum of the overlay, what the user can do.  SHARP_EDGES.md has the same words."""

from __future__ import annotations

import importlib
from typing import NamedTuple


# RegionInlineReason: why a call of a region stays flat.
INLINED = {
    "GRAPH_BREAK": "Remove the graph break inside the layer; `TORCH_LOGS=graph_breaks` shows it.",
    "RAISED": "Nothing, if the program expects the exception; calls that raise none are regions.",
    "NO_OPERATORS": "Nothing: there is nothing to compile.",
    "INSIDE_HIGHER_ORDER_OP": "Call the region outside of `cond`, `while_loop` or `autograd.Function`.",
    "COMPILED_AUTOGRAD": "Turn compiled autograd off, or the regions: one of them compiles the backward.",
    "AOTAUTOGRAD_OPTION": "Turn off `joint_custom_pass`, `selective_decompose`, `enable_complex_wrapper` or"
    " `fake_tensor_propagate_real_tensors` in `torch._functorch.config`, whichever is on.",
    "MEMORY_BUDGET": "Put a checkpoint around the layers instead of `activation_memory_budget`,"
    " `aggressive_recomputation` and `region_activation_memory_budget`.",
    "NO_LEGAL_OPERATORS": "See the operators' own reasons, which the report counts.",
    "NOT_REPEATED": "Nothing, if other calls share a body; else see why they were not reused.",
    "OWN_SIZES": "Compile for inference under `torch.no_grad()`: calls share a body there."
    " Otherwise nothing: the layers are traced once.",
    "NOTHING_INSIDE_BOUNDARY": "Mark more of the program: the layer around it, with operators that make new tensors.",
    "FAILED": "Report it, with the warning in the log; the program is compiled flat.",
}
# ReuseMissReason: why a call is traced although the region was traced before.
NOT_REUSED = {
    "UNSUPPORTED_ARGUMENT": "Pass tensors, numbers, modules, and lists, tuples and dicts of them.",
    "UNSUPPORTED_RESULT": "Return tensors, and lists, tuples and dicts of them.",
    "UNSUPPORTED_GUARD": "Read the value before the layers, and pass it to them.",
    "UNSUPPORTED_VALUE": "Read what the layer needs of the object before the layers, and pass that.",
    "UNSUPPORTED_SOURCE": "Bind the value to a plain attribute or argument.",
    "RUNS_CODE": "Replace the property, `__getattr__` or class check by a plain attribute that is set before.",
    "UNKNOWN_CAPTURE": "Pass the value as an argument.",
    "FIRST_STORE": "Nothing: the next call is traced too, and later ones are compared with that one.",
    "SIDE_EFFECT": "Change the object after the layers, from what they return.",
    "WRITES_A_TENSOR": "Return the new value, and write it outside; or compile under `no_grad`.",
    "CHANGES_GLOBAL_STATE": "Switch the state around the layers, or back inside of each.",
    "READS_PENDING_STATE": "Read it before the frame changes it, or pass it as an argument.",
    "RESULT_SHARES_MEMORY": "Return a new tensor, or take the view outside of the layer.",
    "UNBACKED_SYMBOL": "Make tensors of sizes that depend on data (`nonzero`, `item`) outside of the layers.",
    "INSIDE_HIGHER_ORDER_OP": "Call the region outside of `cond`, `while_loop` or `autograd.Function`.",
    "WEIGHTS_ARE_ATTRIBUTES": "Nothing: for an export, and with freezing, each call is traced.",
    "INSIDE_TRANSFORM": "Apply `vmap` inside the layer, not around it.",
    "INDEX_NOT_ALONE": "Give the layer its element, not the list and an index.",
    "SYMBOLIC_NUMBER": "Pass the number as an argument, or as a tensor.",
    "ARGUMENTS_DIFFER": "Give all layers arguments of one kind: shapes, dtypes, strides, and who requires a gradient.",
    "NO_SOURCE": "Pass an attribute of the model, not something that the frame computes.",
    "GUARD_FAILS": "Give all layers one value; or, if it is a number, hold it as a tensor (a buffer).",
    "OBJECT_DIFFERS": "Give all layers the same attributes and hooks.",
    "ALIASING_DIFFERS": "Share between all layers, or between none: weights, lists, caches.",
    "READ_BY_FRAME": "Nothing, for later calls reuse this one; or let the frame read it of no layer, or of each.",
    "CAPTURE_DIFFERS": "Give the tensors that the layers read one shape, dtype and stride.",
}
# IllegalReason: why an operator is in no region.
OPERATORS = {
    "UNKNOWN_TARGET": "Register it with `torch.library`; or nothing: what is around it is outlined.",
    "NO_RESULT": "Nothing: what is around it is outlined.",
    "RANDOM": "Draw by `dropout` or `rand`: `torch.rand(size) < p` for `bernoulli_(p)`. What is around is outlined.",
    "UNKEYABLE": "Pass plain strided tensors; subclasses, sparse and quantized ones and sparse gradients stay outside.",
    "NOT_A_TENSOR_OR_SIZE": "Instead of `dynamic=True`, mark sizes (`mark_dynamic`), or hold floats as tensors.",
    "OTHER_STATE": "Set kernels and algorithms around all or in each layer; take `backward`, not `torch.func.grad`.",
    "KEEPS_CASTS": "Use `torch.autocast(..., cache_enabled=False)`.",
    "WRITES_A_LIST": "Write to the tensors one by one, or outside of the layers.",
    "BROKEN_SPAN": "Keep the whole in one layer without random operators; return values instead of writing them.",
    "UNKNOWN_BODY": "Nothing: what is around it is outlined.",
    "INFERENCE_OPERAND": "Use `torch.no_grad()` there; or nothing: what is around it is outlined.",
    "UNKNOWN_POLICY": "Use a list of operators, or a policy that only compares operators and constants.",
    "DIFFERENTIATED_IN_GRAPH": "Take the gradient outside of the compiled function.",
}
# BypassReason: why Inductor does not keep a compiled body for other programs. It compiles it once for this one.
NOT_KEPT = {
    "OFF": "Turn the caches on (`force_disable_caches`).",
    "STOCK": "Give passes of your own the class `CustomGraphPass` or `CustomSchedulerPass`, with a `uuid`.",
    "WRAPPER": "Use Python's wrapper (`cpp_wrapper` off).",
    "DEVICE": "Nothing: code is kept for a body that is on the CPU as a whole, or on one CUDA GPU.",
    "BACKEND": "Nothing: only the code of Inductor's own generators can be taken out of a program.",
    "SYMBOLIC_SIZES": "Compile with `dynamic=False` where sizes do not move.",
    "RUNTIME_ASSERTS": "Compile with fixed sizes.",
    "AUTOTUNED": "Compile without `max_autotune`.",
    "RECORDED": "Turn the recording of provenance off.",
    "ATTRIBUTE": "Pass constants as arguments or buffers.",
    "OPERATOR": "Nothing: custom operators are lowered for each program.",
    "LOWERING": "Nothing, or leave Inductor's lowerings as they are.",
    "VALUE": "Nothing: only plain tensors are compared.",
    "UNKEYABLE": "Nothing; `TORCH_LOGS=+torch._inductor.regions.bodies` names it.",
    "CONSTANT": "Nothing: the constant is the program's.",
    "EFFECT": "Move the effect out of the layer.",
    "NODE": "Nothing; `TORCH_LOGS=+torch._inductor.regions.bodies` names it.",
    "RESULT": "Return tensors only.",
    "CODE": "Nothing; `TORCH_LOGS=+torch._inductor.regions.bodies` names it.",
}


class Reasons(NamedTuple):
    """One enum of reasons of the overlay, where it is defined, and what each of its members means to a user."""

    enum: str
    module: str
    question: str  # which its members answer
    advice: dict[str, str]  # its keys are the names of the members, in order

    def causes(self) -> dict[str, str]:
        """member -> what it says.  Raises ImportError where the overlay is off."""
        return {reason.name: reason.value for reason in getattr(importlib.import_module(self.module), self.enum)}


_OUTCOMES = "torch._dynamo.regions.outcomes"
# Of a call, or of an operator in it.
OF_CALLS = (
    Reasons("RegionInlineReason", _OUTCOMES, "Why a call of a region stays flat", INLINED),
    Reasons("ReuseMissReason", _OUTCOMES, "Why a call is traced although the region was traced before", NOT_REUSED),
    Reasons("IllegalReason", "torch._dynamo.regions.outline.legality", "Why an operator is in no region", OPERATORS),
)
REASONS = (
    *OF_CALLS,
    Reasons(
        "BypassReason",
        "torch._inductor.regions.cache",
        "Why Inductor does not keep a compiled body for other programs",
        NOT_KEPT,
    ),
)


def advice_for(call: dict[str, object]) -> str:
    """What to do about a call that was not reused, or stayed flat; "" where there is nothing to say."""
    reason, miss = call["reason"], call["miss"]
    if miss is not None:
        return NOT_REUSED.get(str(miss), "")
    return INLINED.get(str(reason), "") if reason not in (None, "NOT_REPEATED") else ""
