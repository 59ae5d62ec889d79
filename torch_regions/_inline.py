"""Writes a replacement that calls stock's function as a change inside that function.

`stock()` is a tool of the overlay. A replacement may run code before stock's, after it, or instead of it. The exported
series then has stock's code with the change in it. Stock's function stays beside the replacement only if that cannot be
written: if the replacement calls it twice or with other arguments, or changes the result of a function with several
returns.
"""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass


# At most so many lines of stock's code are indented for a `with` around them: more would bury the change.
MAX_INDENTED = 30

Function = ast.FunctionDef | ast.AsyncFunctionDef


class _CannotInline(Exception):
    """Stock's function has to stay, under another name."""


@dataclass
class _Definition:
    """A function's text without indentation, and its syntax tree."""

    text: str

    def __post_init__(self) -> None:
        node = ast.parse(self.text).body[0]
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            raise _CannotInline
        self.node: Function = node
        self.lines = self.text.splitlines()

    @property
    def body(self) -> list[ast.stmt]:
        """The statements after the docstring."""
        return self.node.body[1:] if ast.get_docstring(self.node) is not None else self.node.body

    def docstring(self) -> list[str]:
        return self.between(self.node.body[0], self.node.body[0]) if self.body is not self.node.body else []

    def head(self) -> list[str]:
        """Decorators and signature."""
        lines = self.lines[: self._first_line(self.node.body[0]) - 1]
        while lines[-1].lstrip().startswith("#"):
            lines.pop()  # a comment belongs to the first statement
        return lines

    def between(self, first: ast.stmt, last: ast.stmt) -> list[str]:
        """The lines from `first` to `last`, with the comments above, without the indentation of the body."""
        start = self._first_line(first)
        while start > 1 and self.lines[start - 2].lstrip().startswith("#"):
            start -= 1
        return textwrap.dedent("\n".join(self.lines[start - 1 : last.end_lineno])).splitlines()

    @staticmethod
    def _first_line(node: ast.stmt) -> int:
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def inline(ours: str, stock: str, reference: str) -> str | None:
    """Stock's function with our change in it; None if stock's function has to stay beside ours.

    Both texts are function definitions without indentation. In ours, `reference` names stock's function.
    """
    try:
        return _inline(_Definition(ours), _Definition(stock), reference)
    except _CannotInline:
        return None


def _inline(ours: _Definition, stock: _Definition, reference: str) -> str:
    aliases = [n for n in ast.walk(ours.node) if _is_alias(n, reference)]
    names = {reference, *(n.targets[0].id for n in aliases)}  # type: ignore[attr-defined]
    statements = _without(ours.body, aliases)
    at, call = _the_call(statements, names, aliases)
    _check(ours, stock, statements, at, call)
    before, after = statements[:at], statements[at + 1 :]
    head = _lines_of(ours, before)
    body = stock.between(stock.body[0], stock.body[-1])
    middle = _middle(ours, stock, statements[at], after, call, body)
    text = [*stock.head(), *_indented([*(ours.docstring() or stock.docstring()), *head, *middle])]
    result = "\n".join(text) + "\n"
    if not _strings(stock.node) <= _strings(ast.parse(result)):
        raise _CannotInline  # a string of several lines was indented
    return result


def _strings(tree: ast.AST) -> set[str]:
    """The values of a function's strings, except its docstring, which may be ours."""
    head = tree if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
    docstring = head.body[0] if head is not None and ast.get_docstring(head) is not None else None
    own = {id(n) for n in ast.walk(docstring)} if docstring is not None else set()
    return {
        n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is str and id(n) not in own
    }


def _without(statements: list[ast.stmt], dropped: list[ast.AST]) -> list[ast.stmt]:
    return [statement for statement in statements if all(statement is not each for each in dropped)]


def _middle(
    ours: _Definition, stock: _Definition, at: ast.stmt, after: list[ast.stmt], call: ast.Call, body: list[str]
) -> list[str]:
    """Our statement that calls stock's function, and the later ones, with stock's code in place of the call."""
    if isinstance(at, (ast.Return, ast.Expr)) and at.value is call:
        if isinstance(at, ast.Return) or not (after or _returns(stock.node.body)):
            return body  # statements after a return are never reached
        return [*_without_return(stock, body, None), *_lines_of(ours, after)]
    if isinstance(at, ast.Return) and isinstance(at.value, ast.BoolOp) and isinstance(at.value.op, ast.Or):
        if len(at.value.values) != 2 or at.value.values[1] is not call:
            raise _CannotInline
        return [f"found = {ast.unparse(at.value.values[0])}", "if found:", "    return found", *body]
    if isinstance(at, ast.Assign) and at.value is call and isinstance(at.targets[0], ast.Name) and len(at.targets) == 1:
        return [*_without_return(stock, body, at.targets[0].id), *_lines_of(ours, after)]
    if isinstance(at, ast.If) and not at.orelse and _is_tail(at.body[-1], call):
        return _guarded(ours, stock, at, after, body)
    if isinstance(at, ast.If) and not after:
        return _last_else(ours, stock, at, call, body)
    if isinstance(at, ast.With) and not after and len(at.body) == 1 and _is_tail(at.body[0], call):
        if len(body) > MAX_INDENTED:
            raise _CannotInline
        items = ", ".join(ast.unparse(item) for item in at.items)
        return [f"with {items}:", *_indented(body)]
    raise _CannotInline


def _guarded(ours: _Definition, stock: _Definition, at: ast.If, after: list[ast.stmt], body: list[str]) -> list[str]:
    """An ``if`` that calls stock's function, and our code otherwise. Ours goes first: stock's keeps its indentation."""
    if len(at.body) > 2 or (len(at.body) == 2 and not isinstance(at.body[0], ast.Assign)):
        raise _CannotInline
    if not after:  # stock's, or nothing
        if _returns(stock.node.body):
            raise _CannotInline
        return [f"if {_negated(at.test)}:", "    return", *body]
    if not isinstance(at.body[-1], ast.Return) or not _ends(after):
        raise _CannotInline
    return [f"if {_negated(at.test)}:", *_indented(_lines_of(ours, after)), *body]


def _last_else(ours: _Definition, stock: _Definition, at: ast.If, call: ast.Call, body: list[str]) -> list[str]:
    """An ``if`` whose last branch calls stock's function: our branches, then stock's code."""
    lines: list[str] = []
    rest: list[ast.stmt] = [at]
    while len(rest) == 1 and isinstance(rest[0], ast.If):
        branch, rest = rest[0], rest[0].orelse
        ends = [] if _ends(branch.body) else ["    return"]
        lines += [f"if {ast.unparse(branch.test)}:", *_indented(_lines_of(ours, branch.body)), *ends]
    if len(rest) != 1 or not _is_tail(rest[0], call) or _returns(stock.node.body):
        raise _CannotInline
    return [*lines, *body]


def _is_alias(statement: ast.AST, reference: str) -> bool:
    return (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
        and ast.unparse(statement.value) == reference
    )


def _is_tail(statement: ast.stmt, call: ast.Call) -> bool:
    return isinstance(statement, (ast.Return, ast.Expr)) and statement.value is call


def _the_call(statements: list[ast.stmt], names: set[str], aliases: list[ast.AST]) -> tuple[int, ast.Call]:
    """The only call of stock's function, and the index of its statement. Raises _CannotInline for any other use."""
    calls: list[tuple[int, ast.Call]] = []
    mentions = 0
    named = {id(n) for alias in aliases for n in ast.walk(alias)}
    for i, statement in enumerate(statements):
        for node in ast.walk(statement):
            if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in names and id(node) not in named:
                mentions += 1
            if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
                calls.append((i, node))
    if len(calls) != 1 or mentions != 1:
        raise _CannotInline
    return calls[0]


def _check(ours: _Definition, stock: _Definition, statements: list[ast.stmt], at: int, call: ast.Call) -> None:
    """Raises _CannotInline unless stock's code means the same in the place of the call."""
    parameters = _parameters(stock.node)
    if _parameters(ours.node) != parameters or _passed(call, stock.node) != parameters:
        raise _CannotInline
    if any(isinstance(n, (ast.Yield, ast.YieldFrom, ast.Await)) for n in [*ast.walk(stock.node), *ast.walk(ours.node)]):
        raise _CannotInline
    stored, loaded = _names(stock.node.body, ast.Store), _names(stock.node.body, ast.Load)
    bound = _names(statements, ast.Store) - set(parameters)
    target = statements[at]
    # Our code must not bind a global that stock's code reads. Stock binds its own names before it reads them.
    if bound & (loaded - stored):
        raise _CannotInline
    result = {ast.unparse(target.targets[0])} if isinstance(target, ast.Assign) else set()
    follows = isinstance(target, (ast.Assign, ast.Expr))
    if follows and _names(statements[at + 1 :], ast.Load) & (stored - result):
        raise _CannotInline  # our later code would read a variable of stock's


def _names(statements: list[ast.stmt], context: type[ast.expr_context]) -> set[str]:
    nodes = (n for statement in statements for n in ast.walk(statement) if isinstance(n, ast.Name))
    return {n.id for n in nodes if isinstance(n.ctx, context)}


def _parameters(function: Function) -> list[str]:
    a = function.args
    found = [p.arg for p in (*a.posonlyargs, *a.args)]
    found += [f"*{a.vararg.arg}"] if a.vararg else []
    found += sorted(p.arg for p in a.kwonlyargs)
    return found + ([f"**{a.kwarg.arg}"] if a.kwarg else [])


def _passed(call: ast.Call, stock: Function) -> list[str]:
    """The text that a call passes for each parameter of stock's function; empty if it passes more or fewer."""
    positional = [p.arg for p in (*stock.args.posonlyargs, *stock.args.args)]
    found: dict[str, str] = {}
    for i, argument in enumerate(call.args):
        if isinstance(argument, ast.Starred):
            found["*"] = f"*{ast.unparse(argument.value)}"
        elif i < len(positional):
            found[positional[i]] = ast.unparse(argument)
    for keyword in call.keywords:
        text = ast.unparse(keyword.value)
        found[keyword.arg or "**"] = text if keyword.arg else f"**{text}"
    wanted = [*positional]
    wanted += ["*"] if stock.args.vararg else []
    wanted += sorted(p.arg for p in stock.args.kwonlyargs)
    wanted += ["**"] if stock.args.kwarg else []
    return [found.get(name, "") for name in wanted] if len(found) == len(wanted) else []


def _returns(statements: list[ast.stmt]) -> list[ast.Return]:
    """The return statements of a function, without those of inner functions."""
    found: list[ast.Return] = []
    pending: list[ast.AST] = [*statements]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return):
            found.append(node)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(node))
    return found


def _ends(statements: list[ast.stmt]) -> bool:
    """Whether every path through these statements returns or raises."""
    last = statements[-1] if statements else None
    if isinstance(last, ast.If):
        return _ends(last.body) and _ends(last.orelse)
    if isinstance(last, ast.With):
        return _ends(last.body)
    return isinstance(last, (ast.Return, ast.Raise))


def _without_return(stock: _Definition, body: list[str], result: str | None) -> list[str]:
    """Stock's code, with its only return, which is its last statement, as an assignment to `result`."""
    returns = _returns(stock.node.body)
    last = stock.body[-1]
    if result is None and not returns:
        return body
    if returns != [last] or not isinstance(last, ast.Return) or last.value is None:
        raise _CannotInline
    if result is not None and ast.unparse(last.value) == result:
        return stock.between(stock.body[0], stock.body[-2]) if len(stock.body) > 1 else []
    kept = stock.between(stock.body[0], stock.body[-2]) if len(stock.body) > 1 else []
    lines = stock.between(last, last)
    at = next(i for i, line in enumerate(lines) if line.startswith("return"))
    lines[at] = (f"{result} = " if result is not None else "") + lines[at].removeprefix("return").lstrip()
    return [*kept, *lines]


def _negated(test: ast.expr) -> str:
    flipped = {ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.Eq: "!=", ast.NotEq: "=="}
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ast.unparse(test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in flipped:
        return f"{ast.unparse(test.left)} {flipped[type(test.ops[0])]} {ast.unparse(test.comparators[0])}"
    return f"not ({ast.unparse(test)})"


def _lines_of(definition: _Definition, statements: list[ast.stmt]) -> list[str]:
    return [line for statement in statements for line in definition.between(statement, statement)]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]
