"""The kinds of objects that layers hold and share, and what a program may ask of them.

Templates: ``{k}`` is a number, ``{e}`` an expression that reaches the object, ``{o}`` a global name of one of the kind,
``{v}`` another number.  A use is a statement that changes ``h``; a change is a statement that runs between two calls.
"""

from __future__ import annotations

from dataclasses import dataclass


_IS = (
    "h = h * (2.0 if {e} is {o} else 3.0)",
    "h = h * (2.0 if {e} is not {o} else 3.0)",
    "h = h + (1.0 if any(t is {e} for t in ({o}, None)) else 2.0)",
)
_EQ = (
    "h = h * (2.0 if {e} == {o} else 3.0)",
    "h = h + (1.0 if {e} in ({o}, None) else 2.0)",
)
_TYPE = ("h = h * (2.0 if isinstance({e}, type({o})) else 3.0)", "h = h * (2.0 if type({e}) is type({o}) else 3.0)")
_K = ("h = h * {e}.k",)
_GETATTR = ("h = h * getattr({e}, 'k', 1.0)", "h = h * (2.0 if hasattr({e}, 'extra') else 3.0)")
_SET_K = ("{e}.k = {v}",)
_ATTRIBUTES = (*_SET_K, "{e}.extra = {v}", "del {e}.k")


@dataclass(frozen=True)
class Kind:
    """How an object is made, asked and changed; ``prelude`` is what its making needs."""

    new: str
    uses: tuple[str, ...]
    changes: tuple[str, ...] = ()
    prelude: str = ""


# Only what runs is counted, not what is traced.
COUNT = """\
COUNTS = {}
def count(name):
    if not torch.compiler.is_dynamo_compiling():
        COUNTS[name] = COUNTS.get(name, 0) + 1
"""


def _counted(base: str, *names: str) -> str:
    lines = []
    for name in names:
        args = ", *a" if name in ("eq", "getattribute", "getitem", "contains") else ""
        call = f"super().__{name}__({'*a' if args else ''})"
        if base == "Plain" and name in ("iter", "len", "bool", "getitem", "contains"):
            call = {"iter": "iter((s.k,))", "len": "2", "bool": "True", "getitem": "s.k", "contains": "True"}[name]
        lines.append(f"    def __{name}__(s{args}): count('{name}'); return {call}\n")
    return "".join(lines)


_PLAIN = "class Plain:\n    def __init__(s, k): s.k = k\n"
_MODULE = """\
class Scale(nn.Module):
    def __init__(s, k):
        super().__init__()
        s.k, s.w = k, nn.Parameter(torch.full((3,), k))
        s.register_buffer('b', torch.full((3,), k))
    def forward(s, h): return h * s.w + s.b * s.k
"""

KINDS: dict[str, Kind] = {
    "plain": Kind("Plain({k})", (*_K, *_K, *_IS, *_EQ, *_TYPE, *_GETATTR), _ATTRIBUTES, _PLAIN),
    "switches": Kind(
        "Switches({k})",
        (
            "h = h * (2.0 if {e}.on else 3.0)",
            "h = h * (2.0 if {e}.mode == 'a' else 3.0)",
            "h = h * (2.0 if {e}.extra is None else 3.0)",
            *_IS,
        ),
        ("{e}.on = not {e}.on", "{e}.mode = 'bb'", "{e}.extra = {v}"),
        "class Switches:\n    def __init__(s, k): s.on, s.mode, s.extra = k < 2.5, 'a' if k < 2.5 else 'b', None\n",
    ),
    "slotted": Kind(
        "Slotted({k})",
        (*_K, *_IS, *_EQ, *_TYPE),
        _SET_K,
        "class Slotted:\n    __slots__ = ('k',)\n    def __init__(s, k): s.k = k\n",
    ),
    "sentinel": Kind("object()", (*_IS, *_EQ, *_TYPE)),
    "namedtuple": Kind(
        "Named({k}, 1)",
        (*_K, "h = h * {e}[0]", "h = h * len({e})", *_IS, *_EQ),
        (),
        "class Named(typing.NamedTuple):\n    k: float\n    j: int\n",
    ),
    "enum": Kind(
        "Colour({k})",
        ("h = h * {e}.value", "h = h * len({e}.name)", *_IS, *_EQ),
        (),
        "class Colour(enum.Enum):\n    RED, GREEN, LILAC, BLACK, OLIVE_ = 2.0, 3.0, 5.0, 7.0, 1.5\n",
    ),
    "int_subclass": Kind("Int({k})", ("h = h * {e}", "h = h * int({e})", *_IS, *_EQ), (), "class Int(int): pass\n"),
    "str_subclass": Kind("Str({k})", ("h = h * len({e})", *_IS, *_EQ), (), "class Str(str): pass\n"),
    "tuple_subclass": Kind(
        "Tuple(({k}, 1))", ("h = h * {e}[0]", "h = h * len({e})", *_IS), (), "class Tuple(tuple): pass\n"
    ),
    "number": Kind("{k}", ("h = h * {e}", *_EQ)),
    "string": Kind("'x' * int({k})", ("h = h * len({e})", *_EQ)),
    "partial": Kind(
        "functools.partial(torch.mul, other={k})",
        ("h = {e}(h)", "h = {e}(h)", "h = h * {e}.keywords['other']", *_IS),
        ("{e}.keywords['other'] = {v}",),
    ),
    "lru_cache": Kind(
        "cached({k})",
        ("h = h * {e}(2)", *_IS),
        (),
        "def cached(k):\n    @functools.lru_cache\n    def f(n): return n * k\n    return f\n",
    ),
    "mapping_proxy": Kind("types.MappingProxyType({'k': {k}})", ("h = h * {e}['k']", "h = h * len({e})", *_IS), ()),
    "generator": Kind("torch.Generator().manual_seed(int({k}))", _IS, ("{e}.manual_seed(5)",)),
    "bound_method": Kind(
        "Getter({k}).get",
        ("h = h * {e}()", "h = h * {e}.__self__.k", *_EQ),
        ("{e}.__self__.k = {v}",),
        "class Getter:\n    def __init__(s, k): s.k = k\n    def get(s): return s.k\n",
    ),
    "class": Kind("type('Made', (), {'k': {k}})", (*_K, "h = h * {e}().k", *_IS, *_EQ), _ATTRIBUTES),
    "python_module": Kind(
        "python_module({k})",
        (*_K, *_IS),
        _SET_K,
        "def python_module(k):\n    m = types.ModuleType('made')\n    m.k = k\n    return m\n",
    ),
    "nn_module": Kind(
        "Scale({k})",
        ("h = {e}(h)", "h = {e}(h)", "h = h * {e}.w", "h = h + {e}.b", *_K, *_IS, "h = h * (1 + {e}.training)"),
        (
            *_SET_K,
            "{e}.w = nn.Parameter(torch.full((3,), {v}))",
            "{e}.eval()",
            "{e}.b.add_({v})",
            "{e}.w.requires_grad_(False)",
            "{e}.register_forward_hook(lambda m, i, o: o * {v})",
            "{e}.b = None",
        ),
        _MODULE,
    ),
    "parameter": Kind(
        "nn.Parameter(torch.full((3,), {k}))",
        ("h = h * {e}", "h = h + {e}", "h = h * (2.0 if {e}.requires_grad else 3.0)", *_IS),
        ("{e}.requires_grad_(False)", "{e}.data = torch.full((3,), {v})", "{e}.data = torch.full((1,), {v})"),
    ),
    "tensor": Kind(
        "torch.full((3,), {k})",
        (
            "h = h * {e}",
            "h = h + {e}.sum()",
            "h = h * {e}.shape[0]",
            "h = h * (2.0 if {e}.requires_grad else 3.0)",
            *_IS,
        ),
        ("{e}.requires_grad_()", "{e}.mul_({v})", "{e}.resize_(1)"),
    ),
    "list": Kind(
        "[{k}, 1.0]",
        ("h = h * {e}[0]", "h = h * len({e})", "h = h * sum({e})", *_IS, *_EQ),
        ("{e}.append({v})", "{e}[0] = {v}", "{e}.reverse()"),
    ),
    "dict": Kind(
        "{'k': {k}, 'j': 1.0}",
        (
            "h = h * {e}['k']",
            "h = h * len({e})",
            "h = h * list({e}.values())[0]",
            "h = h * (2 if 'x' in {e} else 3)",
            *_IS,
        ),
        ("{e}['k'] = {v}", "{e}['x'] = {v}", "{e}['k'] = {e}.pop('k')"),
    ),
    "set": Kind("{{k}, 9.0}", ("h = h * len({e})", "h = h * (2.0 if 3.0 in {e} else 3.0)", *_IS), ("{e}.add({v})",)),
    "deque": Kind(
        "collections.deque([{k}, 1.0])",
        ("h = h * {e}[0]", "h = h * len({e})", *_IS),
        ("{e}.append({v})", "{e}[0] = {v}"),
    ),
    "ordered_dict": Kind(
        "collections.OrderedDict(k={k}, j=1.0)",
        ("h = h * {e}['k']", "h = h * next(iter({e}.values()))", *_IS),
        ("{e}['k'] = {v}", "{e}.move_to_end('k')"),
    ),
    "default_function": Kind(
        "defaulted({k})",
        ("h = {e}(h)", *_IS),
        ("{e}.__defaults__ = ({v},)",),
        "def defaulted(k):\n    def f(h, k=k): return h * k\n    return f\n",
    ),
    "closure_function": Kind(
        "closed({k})",
        ("h = {e}(h)", *_IS),
        ("{e}.__closure__[0].cell_contents = {v}",),
        "def closed(k):\n    def f(h): return h * k\n    return f\n",
    ),
    "torch_function": Kind("(torch.sin, torch.cos, torch.tanh)[int({k}) % 3]", ("h = {e}(h)", *_IS)),
    "callable": Kind(
        "Callable({k})",
        ("h = {e}(h)", *_K, *_IS),
        _SET_K,
        "class Callable:\n    def __init__(s, k): s.k = k\n    def __call__(s, h): return h * s.k\n",
    ),
    "namespace": Kind("types.SimpleNamespace(k={k})", (*_K, *_IS, *_GETATTR), _ATTRIBUTES),
    "dataclass": Kind(
        "Data({k})", (*_K, *_IS, *_EQ), _SET_K, "@dataclasses.dataclass\nclass Data:\n    k: float\n    j: int = 1\n"
    ),
    "frozen_dataclass": Kind(
        "Frozen({k})", (*_K, *_IS, *_EQ), (), "@dataclasses.dataclass(frozen=True)\nclass Frozen:\n    k: float\n"
    ),
    "property": Kind(
        "Proper({k})",
        (*_K, *_IS),
        ("{e}.kept = {v}",),
        "class Proper:\n    def __init__(s, k): s.kept = k\n    @property\n    def k(s): return s.kept\n",
    ),
    "dtype": Kind("(torch.float64, torch.float16, torch.bfloat16)[int({k}) % 3]", ("h = h.to({e}).float()", *_EQ)),
    "counting_dict": Kind(
        "CountingDict(k={k}, j=1.0)",
        ("h = h * {e}['k']", "h = h * {e}['k']", *_IS, "h = h * len({e})"),
        ("dict.__setitem__({e}, 'k', {v})",),
        COUNT
        + "class CountingDict(dict):\n"
        + _counted("dict", "iter", "repr", "len", "eq", "getitem", "contains")
        + "    __hash__ = None\n",
    ),
    "counting_list": Kind(
        "CountingList([{k}, 1.0])",
        ("h = h * {e}[0]", *_IS, "h = h * len({e})"),
        ("list.__setitem__({e}, 0, {v})",),
        COUNT + "class CountingList(list):\n" + _counted("list", "iter", "repr", "len", "eq") + "    __hash__ = None\n",
    ),
    "counting_object": Kind(
        "Counting({k})",
        (*_K, *_K, *_IS, *_TYPE, "h = h * (2.0 if {e} else 3.0)", "h = h * (2.0 if {e} == {o} else 3.0)"),
        _ATTRIBUTES,
        COUNT + _PLAIN + "class Counting(Plain):\n" + _counted("Plain", "iter", "repr", "len", "eq", "hash", "bool"),
    ),
    "counting_mixed": Kind(
        # Two classes that differ in nothing but their name: what refuses a reuse here may want to print them.
        "(CountingA, CountingB)[int({k}) % 2](1.5)",
        (*_K, *_IS),
        _SET_K,
        COUNT
        + _PLAIN
        + "class CountingA(Plain):\n"
        + _counted("Plain", "repr", "eq", "hash")
        + "class CountingB(CountingA): pass\n",
    ),
    "getattr_object": Kind(
        "Dynamic({k})",
        ("h = h * {e}.anything", *_K, *_IS),
        _SET_K,
        COUNT
        + _PLAIN
        + "class Dynamic(Plain):\n    def __getattr__(s, name):\n        count('getattr'); return {'anything': 1.5}[name]\n",
    ),
    "getattribute_object": Kind(
        "Watched({k})",
        (*_K, *_IS),
        _SET_K,
        COUNT + _PLAIN + "class Watched(Plain):\n" + _counted("object", "getattribute"),
    ),
    "counting_property": Kind(
        "CountingProper({k})",
        (*_K, *_IS),
        ("{e}.kept = {v}",),
        COUNT
        + "class CountingProper:\n    def __init__(s, k): s.kept = k\n    @property\n    def k(s): count('k'); return s.kept\n    @property\n    def other(s): count('other'); return 1\n",
    ),
}
