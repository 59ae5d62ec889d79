"""The key of AOTAutogradCache as named parts: what two programs must have in common to share compiled code.

Each part has a digest, and the key is the digest of all of them, in order of their names. ``PARTS`` says for each part
what would break without it. A field of stock's details that this file does not know becomes a part too.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.canonical_graph import CanonicalGraph, UnkeyableGraph
from torch._functorch._aot_autograd.canonical_inputs import SymbolNames, leaves, shared_memory, specialized_to
from torch.fx.experimental import _config as symbolic_options
from torch.utils._ambient_state import ambient_state, global_state_key


# What goes wrong without each part of the key. A difference is reported in this order.
PARTS: dict[str, str] = {
    "cache_key_tag": "an artifact of another build, or of stock torch, would be loaded",
    "torch_version": "code of another torch would be loaded, with other operators and another ABI",
    "system_info": "code for another device or CPU would run here",
    "graph": "another program's code would run",
    "inputs": "code for other shapes, strides, dtypes, devices or requires_grad would run",
    "specialization": "code for one size would run where the program asks for code for another, or for all",
    "symbols": "code that relies on the range of a size would run for sizes outside of it",
    "shared_memory": "code for separate inputs would run on overlapping ones, and lose writes",
    "leaves": "a write that the program makes without autograd would be refused",
    "aot_config": "inputs would be passed at other indices, or mutations written back where they were not",
    "grad_enabled": "a program without a backward would run where one is needed",
    "autocast_state": "operators would compute in another dtype",
    "ambient": "kernels would be chosen for other precision, determinism or inference mode",
    "deterministic_algorithms": "a program that must be deterministic would run code that is not",
    "deterministic_algorithms_settings": "memory that must be filled would stay as it was, or warnings become errors",
    "default_dtype": "factories would make tensors of another dtype",
    "cpu_capability": "code for instructions that this CPU lacks would run, on shared caches",
    "symbolic_config": "sizes would have been taken for equal, or for larger than one, by other rules",
    "what_to_recompute": "another estimate or solver would have chosen what to recompute",
    "joint_custom_pass": "the user's pass would not have run, or another one",
    "default_device": "factories would make tensors on another device",
    "default_cuda_device_index": "a graph without tensor inputs would allocate on another device",
    "cuda_matmul_settings": "matrix products would have another precision",
    "cpp_runtime_thread_count": "CPU code specialised to a number of threads would run with another",
    "autograd_config": "the partitioner would have been another, or have saved other values",
    "inductor_config": "code generated under other options would run",
    "inductor_config_comms": "collectives would have been scheduled by other rules",
    "provenance_tracking_level": "an artifact would lack the provenance that was asked for",
    "precompile_enabled": "an entry of one format would be read as the other",
    "fx_kwargs": "code for CUDA graphs would run outside of them, or the reverse",
    "cudagraph_override": "the user's choice for or against CUDA graphs would be ignored",
    "cudagraph_annotation": "the user's choice for or against CUDA graphs would be ignored",
    "saved_tensors_hooks_fx_wrap_cache_hashes": "values would be packed for the backward in another way",
    "sac_context_fn_hashes": "a checkpointed block would save or recompute other operators",
    "region_activation_memory_budget": "the partitioner would have kept to another memory budget",
    "custom_estimator_solver_uuids": "another estimate or solver would have chosen what to recompute",
    "triton_kernel_source_codes": "an edited Triton kernel behind a custom operator would run as it was",
    "user_defined_triton_source": "an edited Triton kernel would run as it was",
    "pre_grad_custom_pass": "the user's pass would not have run, or another one",
    "post_grad_custom_pre_pass": "the user's pass would not have run, or another one",
    "post_grad_custom_post_pass": "the user's pass would not have run, or another one",
    "joint_custom_pre_pass": "the user's pass would not have run, or another one",
    "joint_custom_post_pass": "the user's pass would not have run, or another one",
    "_pre_fusion_custom_pass": "the user's pass would not have run, or another one",
    "_post_fusion_custom_pass": "the user's pass would not have run, or another one",
    "_fuse_ddp_communication_passes": "gradients would be sent in other buckets",
    "custom_backend_passes": "another backend's passes would have run",
    "custom_backend_codegen_configs": "code generated under a backend's other options would run",
    "_custom_partitioner_fn": "another partitioner would have split the graph",
    "var_to_hint_override": "code tuned for other sizes than the user said would run",
}
# Fields of stock's details that the parts above replace: the graph with its names, symbols by name.
_STOOD_FOR = frozenset({"gm", "example_inputs", "aot_config", "autograd_config", "var_to_hint_override"})
# Options that decide guards on sizes while the graph is lowered.
_SYMBOLIC_OPTIONS = (
    "use_duck_shape",
    "backed_size_oblivious",
    "unify_view_symbols_bso_meta",
    "aggressive_guard_free_semantics",
    "symbol_guard_limit_before_specialize",
    "meta_nonzero_assume_all_nonzero",
    "skip_dtype_check_in_meta_registrations",
)
# Stock omits these options from its key because they may be functions.
_RECOMPUTE_OPTIONS = ("activation_memory_budget_runtime_estimator", "activation_memory_budget_solver")


@dataclass
class KeyParts:
    """Digests of the parts of one key, and the graph's records, from which a difference is explained."""

    digests: dict[str, str] = field(default_factory=dict)
    graph: CanonicalGraph | None = None

    def add(self, name: str, content: bytes) -> None:
        self.digests[name] = hashlib.blake2b(content, digest_size=16).hexdigest()

    def text(self) -> str:
        """The text whose digest is the key."""
        return "\n".join(f"{name} {digest}" for name, digest in sorted(self.digests.items()))


def key_parts(
    graph: CanonicalGraph,
    example_inputs: Sequence[Any],
    aot_config: Any,
    details: Any,
    serialize: Callable[[Any], bytes],
    symbols: SymbolNames,
    specialization: Any = None,
) -> KeyParts:
    """The parts of a graph's key.

    ``details`` are stock's. ``serialize`` writes a value so that different values have different bytes. Raises
    ``UnkeyableGraph``, and whatever ``serialize`` raises, for a value without a key.
    """
    parts = KeyParts(graph=graph)
    parts.add("graph", plain_bytes([graph.targets, graph.records]))
    parts.add("inputs", serialize(details.example_inputs))
    sources = aot_config.aot_autograd_arg_pos_to_source
    parts.add("specialization", plain_bytes(specialized_to(specialization, sources)))
    parts.add("shared_memory", serialize(shared_memory(example_inputs)))
    parts.add("leaves", serialize(leaves(example_inputs) if graph.writes else []))
    parts.add("aot_config", serialize(_aot_config_values(aot_config)))
    parts.add("ambient", serialize([torch.is_inference_mode_enabled(), *ambient_state(global_state_key())]))
    parts.add("default_device", str(torch.get_default_device()).encode())
    parts.add("cpu_capability", torch.backends.cpu.get_cpu_capability().encode())
    parts.add("symbolic_config", serialize([getattr(symbolic_options, n) for n in _SYMBOLIC_OPTIONS]))
    parts.add("what_to_recompute", serialize([_name_only(getattr(functorch_config, n)) for n in _RECOMPUTE_OPTIONS]))
    parts.add("joint_custom_pass", serialize(_pass_id(functorch_config.joint_custom_pass)))
    # Stock pickles the configuration with a memo, so equal strings may be pickled in two ways.
    parts.add("autograd_config", serialize(pickle.loads(details.autograd_config)))
    for name, value in vars(details).items():
        if name not in _STOOD_FOR:
            parts.add(name, serialize(value))
    # Last, because by now the symbols of all other parts have numbers.
    parts.add("symbols", serialize(symbols.facts()))
    return parts


def _name_only(choice: Any) -> str | None:
    """The name of a choice built into torch; None for the user's own, which stock's details identify."""
    return choice if isinstance(choice, str) else None


def _pass_id(function: Any) -> Any:
    """Identifier of the user's pass. Raises ``UnkeyableGraph`` if it has none."""
    if function is None:
        return None
    uuid = getattr(function, "uuid", None)
    identifier = uuid() if callable(uuid) else None
    if identifier is None:
        raise UnkeyableGraph("what joint_custom_pass does is not known: it has no uuid()")
    return identifier


def plain_bytes(records: Any) -> bytes:
    """Bytes of nested plain values; without a memo, which would write identical objects unlike equal ones."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream)
    pickler.fast = True
    pickler.dump(records)
    return stream.getvalue()


def _aot_config_values(config: Any) -> tuple[Any, ...]:
    sources = config.aot_autograd_arg_pos_to_source
    return (
        # Without it a parameter would be taken for an argument.
        config.num_params_buffers,
        # Without it mutations would be applied in the graph where the caller applies them, or the reverse.
        config.keep_inference_input_mutations,
        # Without these an exported, untangled or pre-dispatch graph would be taken for a compiled one.
        config.is_export,
        config.no_tangents,
        config.pre_dispatch,
        config.export_trace_joint,
        # Without it a program for fixed sizes would run for all.
        config.dynamic_shapes,
        config.ignore_shape_env,
        # An argument's source is a name, but whether it has a source decides whether guards are made.
        None if sources is None else [source is not None for source in sources],
        # Without it inputs whose address changes would be taken for static ones.
        config.static_input_indices,
        # Without it a log that was asked for would lack the graphs.
        config.enable_log,
        # Loading an entry inserts the name of the precompiled function.
        config.precompile_backend_id is not None,
        # Without these another tracer's program would run.
        config.disable_functionalization,
        config.force_non_lazy_backward_lowering,
        config._disable_torch_fn_metadata_mode,
    )
