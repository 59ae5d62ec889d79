"""What else layers, the model's loop and the time between two calls may do.

In a layer ``s`` is the layer and ``h`` the value at hand; in the loop ``s`` is the model, ``ls`` its layers and ``i`` the
number of the call.  ``{i}`` and ``{j}`` are numbers of layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuzz_kinds import COUNT


# Globals to which layers write.
WRITTEN = ("LOG", "CACHE", "SEEN", "GROWN", "FIRST", "HELD", "WINDOW", "CTX", "OTHER")


@dataclass(frozen=True)
class Part:
    """Statements of a layer: ``line`` in its forward, ``init`` in its constructor, ``member`` in its class."""

    line: str
    init: str = ""
    member: str = ""
    prelude: str = ""


def _named(name: str) -> Part:
    return Part(f"h = h * len(s.{name})", f"s.{name} = [1.0, 2.0]")


def _counted(name: str) -> Part:
    """A method of Module that the user overrides, and the program never calls."""
    return Part("h = h + 0.5", "", f"def {name}(s, *a, **k): count('{name}'); return super().{name}(*a, **k)", COUNT)


_MAKE_HOOK = "def make_hook(c): return lambda m, a, o: o * c\n"
_HOOKED = "s.lin.register_forward_hook(make_hook(2.0))"
_COUNTS = "class Count:\n    def __init__(s, n): s.n = n\nHELD = [Count(3) for n in range(5)]\n"
_ROWS = "ROWS = torch.linspace(-1, 1, 27).view(9, 3)\n"
_TABLED = "TABLED = {n: 1.0 + n for n in range(5)}\n"
_ORDERED = COUNT + "class Ordered:\n    def __lt__(s, o): count('lt'); return True\n"
_ALONE = "class Alone:\n    k = 2.0\n"
_CONTEXT = (
    "class Context:\n    def __init__(s): s.scale, s.d, s.seen, s.t, s.layer, s.o = 2.0, {'k': 2.0, 'l': [1.0]}, [1.0], None, None, None\n"
    "CTX, OTHER = Context(), Context()\ndef collects(m, a, o):\n    if len(CTX.seen) == 1: CTX.seen.append(1.0)\n    CTX.seen.append(0.5)\n"
)
_KEPT = "s.kept = torch.linspace(0, i, 9).view(3, 3)"

PARTS: dict[str, Part] = {
    "constant": Part("h = h * s.c", "s.c = (2.0, 3.0)[i == 2]"),
    "same_constant": Part("h = h * s.c", "s.c = 2.0"),
    "flag": Part("h = h.cos() if s.flag else h.sin()", "s.flag = i % 2 == 0"),
    "word": Part("h = h.cos() if s.word == 'a' else h.sin()", "s.word = 'a'"),
    "unset": Part("h = h.cos() if s.unset is None else h * s.unset", "s.unset = None"),
    "training": Part("h = h * 2 if s.training else h * 3"),
    "index": Part("h = h * TABLE[s.idx]", prelude="TABLE = [1.0, 2.0, 3.0, 4.0, 5.0]\n"),
    "get_of_dict": Part("h = h * TABLED.get(s.idx, 1.0)", prelude=_TABLED),
    "named_method": Part(
        "h = h * getattr(TABLED, s.how)(s.idx)", "s.how = ('get', '__getitem__')[i == 2]", prelude=_TABLED
    ),
    "compares_integer": Part("h = h * (2 if s.n4 < 4 else 3)", "s.n4 = i", prelude=_ORDERED),
    "even": Part("h = h.cos() if s.n4 % 2 == 0 else h * (s.n4 * 4 // (s.n4 + 1))", "s.n4 = i", prelude=_ORDERED),
    "rate": Part("h = h.cos() if s.rate == 0.0 or not s.training else h * (1 - s.rate)", "s.rate = i / 10"),
    "rate_asked": Part("h = h.cos() if s.rate != 0.2 else h.sin() + s.rate", "s.rate = i / 10"),
    "rate_told": Part("LOG.append(s.rate * 2 + s.idx)", "s.rate = i / 10", prelude="LOG = []\n"),
    "row": Part("h = h + s.row.sin() * 2", "s.row = ROWS[i]", prelude=_ROWS),
    "row_strided": Part("h = h + s.row.as_strided((3,), (1,), 1)", "s.row = ROWS[i]", prelude=_ROWS),
    "row_of_bits": Part("h = h + s.row.view(torch.int32) * 1e-9", "s.row = ROWS[i]", prelude=_ROWS),
    "cell": Part("h = s.cell(h, h.sin())", "s.cell = torch.nn.GRUCell(3, 3)"),
    "row_begins": Part("h = h + x.as_strided((3,), (1,), 0)"),
    "compares_held": Part("h = h * (2 if HELD[s.idx].n >= 4 else 3)", prelude=_COUNTS),
    "tensor_index": Part("h = h + CACHE[s.idx]", prelude="CACHE = [torch.full((3,), float(n)) for n in range(5)]\n"),
    "cache_write": Part("h = h * 2; CACHE[s.idx] = h.detach()", prelude="CACHE = [None] * 5\n"),
    "cache_dict": Part("h = h * 2; SEEN[s.idx] = h.detach()", prelude="SEEN = {}\n"),
    "log": Part("LOG.append(s.idx)", prelude="LOG = []\n"),
    "log_length": Part("h = h * len(LOG)", prelude="LOG = [1]\n"),
    # What layers keep grows, so that its length is a symbol from the second compile on.
    "kept": Part("h = h + torch.softmax(h @ s.kept.t(), -1) @ s.kept", _KEPT),
    "grows": Part("s.kept = torch.cat([s.kept, h.detach()[:1]]); h = h + s.kept.sum(0)", _KEPT),
    "grows_and_asks": Part(
        "s.kept = torch.cat([s.kept, h.detach()[:1]]); h = h * (2 if s.kept.size(0) > 4 else s.kept.size(0))", _KEPT
    ),
    "grows_in_a_list": Part(
        "GROWN[s.idx] = torch.cat([GROWN[s.idx], h.detach()[:1]]); h = h + GROWN[s.idx].sin().sum(0)",
        prelude="GROWN = [torch.full((2, 3), float(n)) for n in range(5)]\n",
    ),
    "grows_in_the_first": Part(
        "FIRST[0] = torch.cat([FIRST[0], h.detach()[:1]]); h = h + FIRST[0].sin().sum(0)",
        prelude="FIRST = [torch.ones(2, 3)]\n",
    ),
    # An integer that moves, of an object that is no module's, is a symbol from the second compile on.
    "held_counts": Part("HELD[s.idx].n += h.shape[0]; h = h * 2", prelude=_COUNTS),
    "held_is_a_factor": Part("HELD[s.idx].n += 1; h = h * HELD[s.idx].n", prelude=_COUNTS),
    "held_is_asked": Part("HELD[s.idx].n += 1; h = h * (2 if HELD[s.idx].n > 5 else 3)", prelude=_COUNTS),
    "held_is_a_size": Part("n = HELD[s.idx].n; HELD[s.idx].n += 1; h = h + torch.ones(n, 3).sum(0)", prelude=_COUNTS),
    "held_begins": Part("c = HELD[s.idx]; h = h + torch.arange(c.n, c.n + 3); c.n = c.n * 2 - 1", prelude=_COUNTS),
    "slides": Part(
        "w = torch.cat([WINDOW[s.idx], h.detach()]); WINDOW[s.idx] = w[-2:]; h = h + w.sin().sum(0)",
        prelude="WINDOW = [torch.full((2, 3), float(n)) for n in range(5)]\n",
    ),
    "counter": Part("s.n += 1", "s.n = 0"),
    "counter_read": Part("s.n += 1; h = h * s.n", "s.n = 0"),
    "last": Part("s.last = h.detach()", "s.last = None"),
    "buffer": Part("h = h + s.b", "s.register_buffer('b', torch.ones(3))"),
    "buffer_write": Part("h = h + s.b\nwith torch.no_grad(): s.b.add_(1)", "s.register_buffer('b', torch.ones(3))"),
    "buffer_write_detached": Part("s.b.mul_(h.detach().mean(0))", "s.register_buffer('b', torch.ones(3))"),
    "batch_norm": Part("h = s.norm(h)", "s.norm = nn.BatchNorm1d(3)"),
    "average": Part("s.b.lerp_(h.detach().mean(0), 0.1); h = h * s.b", "s.register_buffer('b', torch.ones(3))"),
    "buffer_rebind": Part("s.b = s.b * 0.5; h = h + s.b", "s.register_buffer('b', torch.ones(3))"),
    "asks_requires_grad": Part("h = h * (2 if s.b.requires_grad else 3)", "s.register_buffer('b', torch.ones(3))"),
    "asks_is_leaf": Part("h = h * (2 if s.b.is_leaf else 3)", "s.register_buffer('b', torch.ones(3))"),
    "asks_grad_fn": Part("h = h * (2 if s.b.grad_fn is None else 3)", "s.register_buffer('b', torch.ones(3))"),
    "asks_grad": Part("h = h * (2 if s.b.grad is None else 3)", "s.register_buffer('b', torch.ones(3))"),
    "asks_version": Part("h = h * (1 + s.b._version)", "s.register_buffer('b', torch.ones(3))"),
    "asks_h": Part("h = h * (2 if h.is_leaf else 3)"),
    "asks_grad_mode": Part("h = h * (2 if torch.is_grad_enabled() else 3)"),
    "asks_size": Part("h = h * h.shape[0]"),
    "asks_strides": Part("h = h * (2 if h.is_contiguous() else 3) * h.stride(0)"),
    "parameter_write": Part("with torch.no_grad(): s.lin.bias.add_(0.5)"),
    "dropout": Part("h = F.dropout(h, 0.5, s.training)"),
    "random": Part("h = h + torch.rand_like(h)"),
    "autocast": Part(
        "with torch.autocast('cpu', dtype=torch.bfloat16): h = (h @ s.m).float()",
        "s.register_buffer('m', torch.randn(3, 3))",
    ),
    "autocast_float16": Part(
        "with torch.autocast('cpu', dtype=torch.float16): h = (h @ s.m).float()",
        "s.register_buffer('m', torch.randn(3, 3))",
    ),
    "autocast_off_to_the_end": Part(
        "with torch.autocast('cpu', enabled=False): h = h.float() @ s.m",
        "s.register_buffer('m', torch.randn(3, 3))",
    ),
    # Autocast leaves it alone and casts what it is made of, here or where autocast is around the layer.
    "composition": Part(
        "h = h + torch.einsum('be,ef,bf->bf', h, s.m, h).float().tanh()", "s.register_buffer('m', torch.randn(3, 3))"
    ),
    "autocast_composition": Part(
        "with torch.autocast('cpu', dtype=torch.bfloat16): h = torch.tensordot(h, s.m, 1).float()",
        "s.register_buffer('m', torch.randn(3, 3))",
    ),
    "own_closure": Part(
        "h = s.act(h)",
        "s.act = make_act(2.0)",
        prelude="def make_act(c):\n    def act(h): return h * c\n    return act\n",
    ),
    "cell_read": Part(
        "h = h * s.read()",
        "s.read, s.bump = make_counter()",
        prelude=(
            "def make_counter():\n    n = 2.0\n    def read(): return n\n"
            "    def bump():\n        nonlocal n\n        n += 1.0\n    return read, bump\n"
        ),
    ),
    "hook_with_a_cell": Part("h = h + 0.25", _HOOKED, prelude=_MAKE_HOOK),
    "hook_by_its_name": Part(
        "h = h * (2 if 'k1' in s.lin._forward_hooks else 3)",
        "s.lin._forward_hooks['k%d' % (i == 2)] = make_hook(2.0)",
        prelude=_MAKE_HOOK,
    ),
    # ``x`` is what the layer was given.
    "argument_is_kept": Part("h = h * (2 if x is s.kept else 3)", _KEPT),
    "argument_has": Part("h = h * getattr(x, 'scale', 2.0)", _KEPT),
    # A layer changes a list, a dict or the buffers of its own.
    "own_list_appends": Part("s.own.append(2.0); h = h * len(s.own)", "s.own = [1.0]"),
    "own_list_stores": Part("s.own[0] = h.detach().sum(); h = h * len(s.own)", "s.own = [1.0]"),
    "own_config_stores": Part("s.config['q'] = h.detach().mean(); h = h * s.config['k']", "s.config = {'k': 2.0}"),
    "own_config_pops": Part("s.config['q'] = s.config.pop('k'); s.config['k'] = 2.0", "s.config = {'k': 2.0}"),
    "buffer_bound": Part("s.b = s.b * 0.5 + 1; h = h + s.b", "s.register_buffer('b', torch.ones(3))"),
    # All layers read an object that the frame changes.
    "context_scale": Part("h = h * CTX.scale", prelude=_CONTEXT),
    "context_element": Part("h = h * CTX.d['k']", prelude=_CONTEXT),
    "context_key": Part("h = h * (2 if 'n' in CTX.d else 3)", prelude=_CONTEXT),
    "context_length": Part("h = h * len(CTX.seen)", prelude=_CONTEXT),
    "context_list": Part("h = h * (2 if CTX.d['l'] is CTX.seen else 3)", prelude=_CONTEXT),
    "context_tensor": Part("h = h * 2 if CTX.t is None else h + CTX.t.detach() * x", prelude=_CONTEXT),
    "context_is_input": Part("h = h * (2 if CTX.t is x else 3)", prelude=_CONTEXT),
    "context_layer": Part("h = h if CTX.layer is None else h + CTX.layer.lin.bias * s.lin.bias", prelude=_CONTEXT),
    "context_is_layer": Part("h = h * (2 if CTX.layer is s else 3)", prelude=_CONTEXT),
    "context_other": Part("h = h * 2 if CTX.o is None else h * CTX.o.scale * len(CTX.o.seen)", prelude=_CONTEXT),
    "context_other_held": Part(
        "h = h * 2 if CTX.o is None or CTX.o.o is None else h * CTX.o.o.scale", prelude=_CONTEXT
    ),
    "context_sets_tag": Part(
        "h = h * getattr(CTX.t, 'tag', 2.0); setattr(CTX.t, 'tag', s.idx + 1.0) if CTX.t is not None else 0",
        prelude=_CONTEXT,
    ),
    "context_tag": Part("h = h * getattr(CTX.t, 'tag', 2.0)", prelude=_CONTEXT),
    "context_appends": Part("CTX.seen.append(2.0); h = h * CTX.seen[0]", prelude=_CONTEXT),
    "context_sets": Part("h = h * CTX.scale; CTX.scale = CTX.scale + 1", prelude=_CONTEXT),
    "context_keeps": Part("CTX.d['h'] = h.detach(); h = h * CTX.d['k']", prelude=_CONTEXT),
    "context_hook": Part("h = h * 2", "s.register_forward_hook(collects)", prelude=_CONTEXT),
    "context_inner_hook": Part("h = h * 2", "s.lin.register_forward_hook(collects)", prelude=_CONTEXT),
    # Nothing but the layer holds the object.
    "seen_weakly": Part(
        "h = h * (3.0 if s.seen() is None else s.seen().k)",
        "s.alone = Alone(); s.seen = weakref.ref(s.alone)",
        prelude=_ALONE,
    ),
    "no_grad": Part("with torch.no_grad(): h = h + h.cos()"),
    "inference_mode": Part("with torch.inference_mode(): v = h.cos()\nh = h + v.clone()"),
    "double": Part("h = h.double().tanh().float()"),
    "view": Part("v = h.t(); h = (v + 1).t().contiguous()"),
    "returns_view": Part("h = h.view(-1).view(h.shape)"),
    "inplace": Part("h = h * 1; h.add_(0.5)"),
    "break": Part("torch._dynamo.graph_break()"),
    "print": Part("print('', end='')"),
    "item": Part("h = h * (h.sum().item() > 0)"),
    "forward_hook": Part("h = h + 1", "if i % 2: s.register_forward_hook(lambda m, a, o: o * 2)"),
    "pre_hook": Part("h = h + 1", "if i == 2: s.lin.register_forward_pre_hook(lambda m, a: (a[0] * 2,))"),
    "property": Part("h = h * s.scaled", "s.c2 = 2.0", "@property\ndef scaled(s): return s.c2 * 1.5"),
    "module_getattr": Part(
        "h = h * s.made_up",
        "",
        "def __getattr__(s, name):\n    count('getattr')\n    return 1.5 if name == 'made_up' else super().__getattr__(name)",
        COUNT,
    ),
    "static_method": Part("h = s.twice(h)", "", "@staticmethod\ndef twice(h): return h * 2"),
    "class_attribute": Part("h = h * s.shared_k", "", "shared_k = 2.0"),
    "own_config": Part("h = h * s.config['k']", "s.config = {'k': 2.0}"),
    "own_list": Part("h = h * len(s.own)", "s.own = [1.0]"),
    "scaled_bias": Part(
        "h = h + s.w2", "s.w2 = nn.Parameter(torch.ones(3)) if i != 1 else None; s.w2 = s.w2 if i != 1 else 2.0"
    ),
    **{
        f"named_{name}": _named(name)
        for name in (
            "children",
            "modules",
            "buffers",
            "parameters",
            "named_parameters",
            "training_",
            "named_children",
            "forward_",
            "state_dict",
            "named_modules",
            "register_buffer_",
            "apply",
            "named_buffers",
            "hooks",
            "items",
            "keys",
            "get",
        )
    },
    **{
        f"counted_{name}": _counted(name)
        for name in (
            "modules",
            "parameters",
            "children",
            "named_parameters",
            "named_modules",
            "buffers",
            "named_children",
            "named_buffers",
            "__repr__",
            "__dir__",
            "__hash__",
            "__getattribute__",
        )
    },
}

# What a marked method returns beside ``h``, and the value of the layer, where ``r`` is that result.
RESULTS: dict[str, tuple[str, str]] = {
    "result_more": ("h.cos()", "h + r"),
    "result_unused": ("h.cos()", "h"),
    "result_argument": ("x", "h + r"),
    "result_twice": ("h", "h * r"),
    "result_twice_written": ("h", "r.add_(0.5) * h"),
    "result_view": ("h.t()", "h + r.t()"),
    "result_view_written": ("h.t()", "h.mul_(2) + r.t()"),
    "result_detached": ("h.detach()", "h + r"),
    "result_view_of_detached": ("(h.detach() * 2)[1:]", "h + r.mul_(s.lin.weight[0]).sum(0)"),
    "result_asked": ("h.detach()", "h * (2 if r.requires_grad else 3)"),
    "result_weight": ("s.lin.weight", "h @ r"),
    "result_integers": ("h.argmax(-1)", "h + r[:, None]"),
    "result_size": ("h.size(0)", "h * r"),
    "result_half": ("h.narrow(0, 0, h.size(0) // 2)", "h + r.sum(0)"),
    "result_none": ("None", "h * 2 if r is None else h"),
    "result_nested": ("{'k': (h.sum(), 2.0)}", "h * r['k'][1] + r['k'][0]"),
    "result_layer": ("s", "h * len(r.lin.weight)"),
    "result_made": ("torch.ones(3)", "h + r"),
}

# Statements of the model's loop before its call number {i}, which stand behind an ``if``. B needs a part with ``s.b``.
BETWEEN: dict[str, str] = {
    "write_buffer": "ls[{j}].b.mul_(s.w)",
    "write_buffer_detached": "ls[{j}].b.add_(1)",
    "buffer_requires_grad": "ls[{j}].b.requires_grad_()",
    "buffer_detach": "ls[{j}].b.detach_()",
    "buffer_grad": "ls[{j}].b.grad = torch.ones(3)",
    "buffer_rebind": "ls[{j}].b = torch.zeros(3)",
    "constant": "ls[{j}].c = 5.0",
    "own_list": "ls[{j}].own.append(2.0)",
    "own_config": "ls[{j}].config['k'] = 4.0",
    "detach": "h = h.detach()",
    "double": "h = h.double().float()",
    "break": "torch._dynamo.graph_break()",
    "again": "h = ls[{j}](h)",
    "calls_of_slices": (
        "t = torch.stack([h, h * 2, h - 1, h + 1])\nh = ls[{j}](t[1]) + ls[{j} - 1](t[2]) * ls[{j} - 2](t[0]) + t[3]"
    ),
    "calls_of_rows": "h = torch.stack([ls[{j} - n](row) for n, row in enumerate(torch.stack([h, h * 2, h - 1]))]).sum(0)",
    # The gradients of the calls' results are parts of one tensor.
    "calls_stacked": (
        "t = torch.stack([ls[{j}](h), ls[{j} - 1](h * 2), ls[{j} - 2](h - 1)], 1)\n"
        "h = (t * torch.tensor([[0.5], [1.0], [0.25]])).sum(1)"
    ),
    "calls_concatenated": "h = (torch.cat([ls[{j} - n](h + n) for n in range(3)], 1).tanh() @ torch.ones(9, 3)) * 0.1",
    "no_grad_call": "with torch.no_grad(): h = ls[{j}](h)",
    "autocast_call": "with torch.autocast('cpu', dtype=torch.bfloat16): h = ls[{j}](h).float()",
    "autocast_calls": (
        "with torch.autocast('cpu', torch.bfloat16): h = ls[{j}](h).float()\n"
        "with torch.autocast('cpu', torch.float16): h = ls[{j} - 1](h).float()"
    ),
    "autocast_kept_call": "with torch.autocast('cpu', torch.bfloat16, True, True): h = ls[{j} - 1](ls[{j}](h)).float()",
    # The result of a layer, changed in place: other layers return what they return.
    "result_detached": "h.detach_()",
    "result_requires_grad": "h.requires_grad_()",
    # A view of a result is no operand like another; what is computed of it is.
    "result_transposed": "h.t_(); h = h.t().contiguous()",
    "result_transposed_and_read": "h.t_(); h = h.t() * 2",
    "result_unsqueezed": "h.unsqueeze_(0); h = h.squeeze(0)",
    "result_unsqueezed_and_read": "h.unsqueeze_(-1); h = h.squeeze(-1) * 2",
    "result_swapped_and_read": "h.swapdims_(0, 1); h = h.swapdims(0, 1) * 2",
    "result_written": "h.mul_(s.w)",
    "asks_of_a_result": "h = h * (2 if h.requires_grad else 3) * (5 if h.is_leaf else 7)",
    "asks_the_shape_of_a_result": "h = h * h.size(0)",
    # Passes of the backend remove copies, and make one value of equal ones.
    "copied": "h = h.clone()",
    "copies": "h = ls[{j}](h.clone()) + ls[{j}](h.clone())",
    "given_kept": "h = h + ls[{j}](ls[{j}].kept)[:1]",
    "given_kept_as_it_is": "h = h + ls[{j}](ls[{j}].kept.contiguous())[:1]",
    "given_anothers": "h = h + ls[{j}](ls[{j} - 1].kept)[:1]",
    "reads_kept": "h = h + ls[{j}].kept.sum()",
    # Without gradients, layers write to their buffers in their bodies.
    "keeps_buffer": "s.seen = ls[{j}].b.clone(); h = ls[{j}](h)",
    "reads_buffer": "h = h + ls[{j}].b",
    "norm_call": "h = ls[{j}].norm(h)",
    "shared_norm": "ls[{j}].norm = ls[{j} - 1].norm",
    "reads_statistics": "h = h * ls[{j}].norm.running_mean",
    "compares_held": "h = h * (2 if HELD[{j}].n == h.size(0) + 3 else 3)",
    "compares_lengths": "h = h * (2 if ls[{j}].kept.size(0) == h.size(0) else 3)",
    "eval": "ls[{j}].training = False",
    "weight": "h = h + ls[{j}].lin.weight.sum()",
    "write_weight": "with torch.no_grad(): ls[{j}].lin.weight.mul_(0.5)",
    # The frame stores weights in layers, as functional_call does; some it puts back.
    "stores_weight": "w = ls[{j}].lin._parameters; p = w['weight']; w['weight'] = p * 0.5; h = ls[{j}](h); w['weight'] = p",
    "stores_weights": (
        "ws = [l.lin._parameters for l in ls]; ps = [w['weight'] for w in ws]\n"
        "for w in ws: w['weight'] = w['weight'] * 0.5\n"
        "h = ls[{j} - 1](ls[{j}](h))\n"
        "for w, p in zip(ws, ps): w['weight'] = p"
    ),
    "stores_anothers": "ls[{j}].lin._parameters['weight'] = ls[{j} - 1].lin._parameters['weight']",
    "stores_as_another_name": (
        "w = ls[{j}].lin._parameters; p = w.pop('weight'); h = h @ p; w['weight'] = p; h = ls[{j}](h)"
    ),
    "stores_buffer": (
        "w = ls[{j}]._buffers; b = w['b']; w['b'] = b * 0.5; h = ls[{j} - 1](ls[{j}](h)); w['b'] = b; h = ls[{j}](h)"
    ),
    "context_scale": "CTX.scale = 4.0",
    "context_dict": "CTX.d = {'k': 3.0, 'l': CTX.seen}",
    "context_element": "CTX.d['k'] = 5.0",
    "context_key": "CTX.d['n'] = 1.0",
    "context_list": "CTX.seen = [1.0]",
    "context_appends": "CTX.seen.append(3.0)",
    "context_tensor": "CTX.t = h",
    "context_computed": "CTX.t = h * 0.5",
    "context_written": "CTX.t = h * 0.5; CTX.t.mul_(s.w)",
    "context_layer": "CTX.layer = ls[{j}]",
    "context_reads": "h = h * CTX.scale * len(CTX.seen)",
    "context_other": "CTX.o = OTHER",
    "context_other_held": "CTX.o = Context(); CTX.o.o = OTHER",
    "context_other_scale": "OTHER.scale = 4.0",
    "context_other_appends": "OTHER.seen.append(2.0)",
    "context_tag": "if CTX.t is not None: CTX.t.tag = 3.0",
    "calls_act": "h = ls[{j}].act(h)",
    "bumps": "ls[{j}].bump()",
    "calls_lin": "h = ls[{j}].lin(h)",
}

# Changes between two calls of the model that are not about a shared object.
CHANGES: dict[str, str] = {
    "constant": "ls[{i}].c = 7.0",
    "flag": "ls[{i}].flag = not ls[{i}].flag",
    "word": "ls[{i}].word = 'b'",
    "unset": "ls[{i}].unset = 2.0",
    "eval": "ls[{i}].eval()",
    "weight": "ls[{i}].lin.weight = nn.Parameter(torch.ones(3, 3))",
    "freeze": "ls[{i}].lin.weight.requires_grad_(False)",
    "bias": "ls[{i}].lin.bias = None",
    "module": "ls[{i}].lin = nn.Linear(3, 3, bias=False)",
    "tie": "ls[{i}].lin.weight = ls[{j}].lin.weight",
    "tie_module": "ls[{i}].lin = ls[{j}].lin",
    "forward_hook": "ls[{i}].register_forward_hook(lambda m, a, o: o * 2)",
    "pre_hook": "ls[{i}].lin.register_forward_pre_hook(lambda m, a: (a[0] * 2,))",
    "method": "ls[{i}].forward = lambda h: h * 3",
    "buffer": "ls[{i}].b = torch.full((3,), 4.0)",
    "buffer_shape": "ls[{i}].b = torch.full((1,), 4.0)",
    "buffer_double": "ls[{i}].b = ls[{i}].b.double()",
    "buffer_requires_grad": "ls[{i}].b.requires_grad_()",
    "tie_statistics": "ls[{i}].norm.running_var = ls[{j}].norm.running_var",
    "norm_eval": "ls[{i}].norm.eval()",
    "no_momentum": "ls[{i}].norm.momentum = 0.5",
    "tie_buffer": "ls[{i}].b = ls[{j}].b",
    "new_attribute": "ls[{i}].anything = 1",
    "swap": "swap(m, {i}, {j})",
    "drop": "drop(m)",
    "dies": "ls[{i}].alone = None",
    "all_die": "for l in ls: l.alone = None",
    "class_attribute": "type(ls[{i}]).shared_k = 3.0",
    "property": "ls[{i}].c2 = 5.0",
    "own_config": "ls[{i}].config['k'] = 4.0",
    "own_list": "ls[{i}].own.append(2.0)",
    "own_config_replaced": "ls[{i}].config = ls[{j}].config",
    "index": "ls[{i}].idx = 0",
    "integer": "ls[{i}].n4 = 9",
    "rate": "ls[{i}].rate = 0.0",
    "rate_integer": "ls[{i}].rate = True",
    "rate_tensor": "ls[{i}].rate = torch.tensor(0.5)",
    "all_rates": "for l in ls: l.rate = getattr(l, 'rate', 0.0) + 0.25",
    "an_order": "ls[{i}].n4 = Ordered()",
    "element": "TABLED[{i}] = 5.0",
    "no_element": "TABLED.pop({i}, None)",
    "held": "HELD[{i}].n = 9",
    "all_held": "for held in HELD: held.n = 9",
    "cell": "ls[{i}].act.__closure__[0].cell_contents = 5.0",
    "bumped": "ls[{i}].bump()",
    "hook_renamed": "ls[{i}].lin._forward_hooks['k1'] = ls[{i}].lin._forward_hooks.popitem()[1]",
    "length": "ls[{i}].kept = torch.ones(7, 3)",
    "all_lengths": "for n, l in enumerate(ls): l.kept = torch.linspace(0, n, 15).view(5, 3)",
    "kept_has": "ls[{i}].kept.scale = 4.0",
    "tie_kept": "ls[{i}].kept = ls[{j}].kept",
    "kept_requires_grad": "ls[{i}].kept = torch.ones(4, 3, requires_grad=True)",
    "kept_view": "ls[{i}].kept = torch.ones(8, 3)[2:6]",
    "row": "ls[{i}].row = torch.linspace(0, 1, 9)[4:7]",
    "all_rows": "for n, l in enumerate(ls): l.row = torch.linspace(0, n, 21)[2 * n:2 * n + 3]",
    "whole_eval": "m.eval()",
    "stride": "ls[{i}].lin.weight.data = ls[{i}].lin.weight.data.t()",
    "none": "pass",
}
