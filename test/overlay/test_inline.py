"""A replacement that calls stock's function is written as one change in it, and does what both did."""

from __future__ import annotations

import textwrap

import pytest

from torch_regions import _inline


STOCK = '''
def f(x, y=2):
    """Stock's."""
    if x > 3:
        return x - y
    total = x * y
    return total
'''
ONE_RETURN = """
def f(x, y=2):
    total = x * y
    # What is given back.
    return total + SEEN[-1]
"""
VOID = """
def f(x, y=2):
    SEEN.append((x, y))
"""
INLINED = {
    "before": (STOCK, "def f(x, y=2):\n    # first\n    SEEN.append(x)\n    return inner_f(x, y)\n"),
    "before, and a parameter bound anew": (STOCK, "def f(x, y=2):\n    x = x + 1\n    return inner_f(x, y)\n"),
    "by another name": (
        STOCK,
        "def f(x, y=2):\n    call = inner_f\n    if x == 1:\n        x = 5\n    return call(x, y=y)\n",
    ),
    "in place of it": (STOCK, "def f(x, y=2):\n    if x != 1:\n        return inner_f(x, y)\n    return 7 * y\n"),
    "in place of it, by another name": (
        STOCK,
        "def f(x, y=2):\n    if x > 1 or y > 2:\n        call = inner_f\n        return call(x, y)\n    z = 7\n    return z\n",
    ),
    "or": (STOCK, "def f(x, y=2):\n    return SEEN.count(x) or inner_f(x, y)\n"),
    "within": (STOCK, "def f(x, y=2):\n    with noted(x), noted(y):\n        return inner_f(x, y)\n"),
    "after": (ONE_RETURN, "def f(x, y=2):\n    found = inner_f(x, y)\n    SEEN.append(found)\n    return -found\n"),
    "its result dropped": (VOID, "def f(x, y=2):\n    inner_f(x, y)\n    SEEN.append(y)\n"),
    "unless": (VOID, "def f(x, y=2):\n    if not SEEN.count(x):\n        inner_f(x, y)\n"),
    "else": (
        VOID,
        "def f(x, y=2):\n    if x == 1:\n        SEEN.append(9)\n    elif x == 2:\n        return\n    else:\n        inner_f(x, y)\n",
    ),
}
KEPT = {
    "twice": (STOCK, "def f(x, y=2):\n    return inner_f(x, y) + inner_f(x, y)\n"),
    "as a value": (STOCK, "def f(x, y=2):\n    return max(inner_f, key=id)\n"),
    "with other arguments": (STOCK, "def f(x, y=2):\n    return inner_f(x + 1, y)\n"),
    "without one of them": (STOCK, "def f(x, y=2):\n    return inner_f(x)\n"),
    "on the result of one with several returns": (
        STOCK,
        "def f(x, y=2):\n    found = inner_f(x, y)\n    return -found\n",
    ),
    "with its names": (ONE_RETURN, "def f(x, y=2):\n    SEEN = [1]\n    return inner_f(x, y)\n"),
    "with other parameters": (STOCK, "def f(a, y=2):\n    return inner_f(a, y)\n"),
    "a generator": ("def f(x, y=2):\n    yield x\n", "def f(x, y=2):\n    return inner_f(x, y)\n"),
    "a string of lines, further in": (
        'def f(x, y=2):\n    return """a\n  b"""\n',
        "def f(x, y=2):\n    with noted(x):\n        return inner_f(x, y)\n",
    ),
}


def _run(text: str, stock: str | None, *args: int) -> object:
    class Noted:
        def __init__(self, value):
            self.value = value

        def __enter__(self):
            seen.append(self.value)

        def __exit__(self, *exc):
            seen.append(-self.value)

    seen = [1, 2]
    scope: dict[str, object] = {"SEEN": seen, "noted": Noted}
    if stock is not None:
        exec(stock, scope)
        scope["inner_f"] = scope["f"]
    exec(text, scope)
    return scope["f"](*args), seen  # type: ignore[operator]


@pytest.mark.parametrize("case", INLINED)
def test_stocks_code_with_the_change_in_it(case):
    stock, ours = (textwrap.dedent(text).lstrip() for text in INLINED[case])
    merged = _inline.inline(ours, stock, "inner_f")
    assert merged is not None and "inner_f" not in merged
    for args in ((1,), (2, 3), (4,), (9, 1)):
        assert _run(merged, None, *args) == _run(ours, stock, *args), merged


def test_comments_and_docstring_stay():
    stock, ours = (textwrap.dedent(text).lstrip() for text in INLINED["after"])
    assert "# What is given back." in _inline.inline(ours, stock, "inner_f")
    stock, ours = (textwrap.dedent(text).lstrip() for text in INLINED["before"])
    merged = _inline.inline(ours, stock, "inner_f")
    assert '"""Stock\'s."""' in merged and "# first" in merged


@pytest.mark.parametrize("case", KEPT)
def test_stocks_function_stays_beside_ours_when_it_is_called(case):
    stock, ours = (textwrap.dedent(text).lstrip() for text in KEPT[case])
    assert _inline.inline(ours, stock, "inner_f") is None
