"""Prints a program as the source text of a module.

The module has ``make()``, which returns the model, ``layers(m)``, its layers, ``CHANGES``, functions that are called with the
model between two calls, and ``inputs(n)``, the argument of call number ``n``.  ``region`` is the mark, or the identity.
"""

from __future__ import annotations

import textwrap

from fuzz_kinds import KINDS
from fuzz_parts import BETWEEN, CHANGES, PARTS, RESULTS
from fuzz_program import Between, Change, Program, Thing, Use


IMPORTS = """\
import collections, dataclasses, enum, functools, types, typing, weakref
import torch
import torch.nn as nn
import torch.nn.functional as F
"""

_HOLD = {
    "attribute": ("s.{a} = {a}", "{l}.{a}"),
    "item": ("s.{a} = [{a}, None]", "{l}.{a}[0]"),
    "key": ("s.{a} = {'x': {a}}", "{l}.{a}['x']"),
    "inner": ("s.{a} = Inner(); s.{a}.x = {a}", "{l}.{a}.x"),
    "module": ("s.{a} = InnerModule(); s.{a}.x = {a}", "{l}.{a}.x"),
    "pair": ("s.{a} = ({a}, 1)", "{l}.{a}[0]"),
}
_HOLD_PRELUDE = {
    "inner": "class Inner: pass\n",
    "module": "class InnerModule(nn.Module): pass\n",
}
FRESH = 11.0


def name_of(index: int) -> str:
    return "pqr"[index]


def pool_name(index: int, number: int) -> str:
    return f"{name_of(index).upper()}{number}"


def _new(thing: Thing, value: float) -> str:
    return KINDS[thing.kind].new.replace("{k}", repr(value))


def _reach(thing: Thing, index: int, layer: str) -> str:
    return _HOLD[thing.held][1].replace("{l}", layer).replace("{a}", name_of(index))


def _fill(template: str, reached: str, other: str) -> str:
    return template.replace("{e}", reached).replace("{o}", other).replace("{v}", "7.0")


def _number(thing: Thing, number: int) -> int:
    return number % len(thing.values)


class _Printer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.helpers: list[str] = []

    def use(self, index: int, use: Use, owner: str) -> str:
        """The statement of one use; ``owner`` is the layer, or the model with ``s.a0`` as its own."""
        thing = self.program.things[index]
        number = _number(thing, use.number)
        pool = pool_name(index, number)
        if use.through == "self":
            return _fill(use.statement, _reach(thing, index, owner), pool)
        if use.through == "global":
            return _fill(use.statement, pool, pool_name(index, 0))
        if use.through == "root":
            return _fill(use.statement, f"ROOT.{name_of(index)}{number}", pool_name(index, 0))
        name = f"use{len(self.helpers)}"
        body = _fill(use.statement, "kept", pool_name(index, 0))
        if use.through == "cell":
            text = f"def close{name}(kept):\n    def use(h):\n        {body}\n        return h\n    return use\n{name} = close{name}({pool})\n"
        else:
            text = f"def {name}(h, kept={pool}):\n    {body}\n    return h\n"
        self.helpers.append(text)
        return f"h = {name}(h)"

    def layer_class(self, number: int) -> str:
        program = self.program
        names = [name_of(i) for i in range(len(program.things))]
        parts = [PARTS[p] for p in program.parts[number]]
        init = ["super().__init__()", "s.lin, s.idx = nn.Linear(3, 3), i"]
        init += [_HOLD[t.held][0].replace("{a}", n) for t, n in zip(program.things, names)]
        init += [p.init for p in parts if p.init]
        body = ["x = h", "h = s.lin(h).sin()"]
        for index, thing in enumerate(program.things):
            body += [self.use(index, use, "s") for use in thing.uses]
        body += [line for p in parts for line in p.line.split("\n")]
        body.append("return h")
        members = [line for p in parts if p.member for line in p.member.split("\n")]
        lines = [f"class L{number}(nn.Module):", f"    def __init__({', '.join(['s', 'i', *names])}):"]
        lines += ["        " + line for line in init]
        lines += ["    " + line for line in members]
        if program.form == "method":
            head = ["    def forward(s, h): return s.step(h)", "    @region", "    def step(s, h):"]
        elif program.form == "forward":
            head = ["    @region", "    def forward(s, h):"]
        elif program.form == "helper":
            head = ["    def forward(s, h):"]
            helper = ["@region", f"def part{number}(s, h):", *("    " + line for line in body)]
            self.helpers.append("\n".join(helper) + "\n")
            body = [f"return part{number}(s, h)"]
        elif program.form in RESULTS:
            returned, used = RESULTS[program.form]
            head = [f"    def forward(s, h): h, r = s.step(h); return {used}", "    @region", "    def step(s, h):"]
            body[-1] = f"return h, {returned}"
        else:
            head = ["    def forward(s, h):"]
        return "\n".join([*lines, *head, *("        " + line for line in body)]) + "\n"

    def root_lines(self, before: bool) -> list[str]:
        found = []
        for index, thing in enumerate(self.program.things):
            for use in thing.at_root:
                if (use.number % 2 == 0) is before:
                    through = "global" if use.through == "self" else use.through
                    found.append(self.use(index, Use(use.statement, through, use.number), "s"))
        return found

    def between(self, b: Between) -> str:
        program = self.program
        j = b.j % program.layers
        if b.thing >= 0:
            thing = program.things[b.thing]
            reached = _reach(thing, b.thing, f"ls[{j}]")
            if b.what == "replace":
                return f"{reached} = {pool_name(b.thing, len(thing.values) - 1)}"
            return _fill(b.what, reached if b.j % 2 else pool_name(b.thing, 0), pool_name(b.thing, 0))
        return BETWEEN[b.what].replace("{j}", str(j))

    def call(self, layer: str) -> str:
        return f"h = apply({layer}, h)" if self.program.form == "function" else f"h = {layer}(h)"

    def model_class(self) -> str:
        program, container = self.program, self.program.container
        made = []
        for i, kind in enumerate(program.classes):
            args = [str(i)]
            for index, thing in enumerate(program.things):
                number = thing.pattern[i]
                args.append(_new(thing, thing.values[0]) if number < 0 else pool_name(index, _number(thing, number)))
            made.append(f"L{kind}({', '.join(args)})")
        init = ["super().__init__()", "s.w = nn.Parameter(torch.full((3,), 1.5))"]
        for index, thing in enumerate(program.things):
            init += [f"s.{name_of(index)}{n} = {pool_name(index, n)}" for n in range(len(thing.values))]
        listed = ", ".join(made)
        init += {
            "module_list": [f"s.ls = nn.ModuleList([{listed}])"],
            "sequential": [f"s.ls = nn.Sequential({listed})"],
            "list": [f"s.ls = [{listed}]"],
            "tuple": [f"s.ls = ({listed},)"],
            "dict": [f"s.ls = dict(enumerate([{listed}]))"],
            "module_dict": ["s.ls = nn.ModuleDict({" + ", ".join(f"'l{i}': {m}" for i, m in enumerate(made)) + "})"],
            "attributes": [f"s.l{i} = {m}" for i, m in enumerate(made)],
            "once": [f"s.l = {made[0]}"],
        }[container]
        listing = {
            "dict": "list(m.ls.values())",
            "module_dict": "list(m.ls.values())",
            "attributes": "[" + ", ".join(f"m.l{i}" for i in range(program.layers)) + "]",
            "once": f"[m.l] * {program.layers}",
        }.get(container, "list(m.ls)")
        forward = [*self.root_lines(before=True)]
        plain = not program.between and program.form != "function"
        if container == "sequential" and plain:
            forward.append("h = s.ls(h)")
        elif container == "attributes" and plain:
            forward += [f"h = s.l{i}(h)" for i in range(program.layers)]
        elif container in ("module_list", "list", "tuple") and plain:
            forward.append("for l in s.ls: h = l(h)")
        else:
            listed_here = listing.replace("m.", "s.")
            forward += [f"ls = {listed_here}", "for i, l in enumerate(ls):"]
            for b in program.between:
                lines = [f"    if i == {b.at % program.layers}:", *self.between(b).split("\n")]
                forward.append("\n            ".join(lines))
            forward.append("    " + self.call("l"))
        forward += [*self.root_lines(before=False), "return h"]
        lines = [
            "class M(nn.Module):",
            "    def __init__(s):",
            *("        " + x for x in init),
            "    def forward(s, h):",
        ]
        # What stands behind an ``if`` is indented once more than its own line says.
        body = textwrap.indent("\n".join(forward).replace("\n            ", "\n        "), "        ")
        return "\n".join(lines) + "\n" + body + f"\ndef layers(m): return {listing}\n"

    def change(self, c: Change) -> list[str]:
        i, j = c.i % self.program.layers, c.j % self.program.layers
        if c.thing < 0:
            return [CHANGES[c.what].replace("{i}", str(i)).replace("{j}", str(j))]
        thing = self.program.things[c.thing]
        reached = _reach(thing, c.thing, f"ls[{i}]")
        if c.what in ("replace", "replace_fresh", "rebind"):
            fresh = thing.values[-1] if thing.kind == "enum" else FRESH
            value = pool_name(c.thing, _number(thing, c.j)) if c.what == "replace" else _new(thing, fresh)
            if c.what == "rebind":
                return [f"global {pool_name(c.thing, 0)}; {pool_name(c.thing, 0)} = {value}"]
            if thing.held == "pair":
                return [f"ls[{i}].{name_of(c.thing)} = ({value}, 1)"]
            return [f"{reached} = {value}"]
        return [_fill(c.what, reached, pool_name(c.thing, 0))]

    def changes(self) -> str:
        text = ""
        for number, step in enumerate(self.program.changes):
            lines = [line for c in step for line in self.change(c)] or ["pass"]
            # A global declaration comes before any use of the name.
            declared = dict.fromkeys(line.split("; ")[0] for line in lines if line.startswith("global "))
            lines = [line.split("; ", 1)[1] if line.startswith("global ") else line for line in lines]
            lines = [*declared, "ls = layers(m)", *lines]
            text += f"def change{number + 1}(m):\n" + textwrap.indent("\n".join(lines), "    ") + "\n"
        return text + f"CHANGES = [{', '.join(f'change{n + 1}' for n in range(len(self.program.changes)))}]\n"

    def tools(self) -> str:
        """Functions that some changes call."""
        program = self.program
        text = ""
        names = {c.what for step in program.changes for c in step}
        container = "[m.ls._modules, 'l']" if program.container == "module_dict" else "[m.ls._modules, '']"
        if names & {"swap", "drop"}:
            parts = {
                "list": ("m.ls[i], m.ls[j] = m.ls[j], m.ls[i]", "m.ls.pop()"),
                "dict": ("m.ls[i], m.ls[j] = m.ls[j], m.ls[i]", "m.ls.popitem()"),
                "tuple": ("a = list(m.ls); a[i], a[j] = a[j], a[i]; m.ls = tuple(a)", "m.ls = m.ls[:-1]"),
                "attributes": (
                    "a, b = f'l{i}', f'l{j}'; x, y = getattr(m, a), getattr(m, b); setattr(m, a, y); setattr(m, b, x)",
                    "m.l0 = m.l1",
                ),
                "once": ("m.l = type(m.l)(0, " + ", ".join(["None"] * len(program.things)) + ")", "pass"),
            }.get(
                program.container,
                (
                    f"d, p = {container}; a, b = p + str(i), p + str(j); d[a], d[b] = d[b], d[a]",
                    f"d, p = {container}; d.popitem()",
                ),
            )
            text += f"def swap(m, i, j):\n    {parts[0]}\ndef drop(m):\n    {parts[1]}\n"
        return text

    def text(self) -> str:
        program = self.program
        pools = "".join(
            f"{pool_name(index, n)} = {_new(thing, value)}\n"
            for index, thing in enumerate(program.things)
            for n, value in enumerate(thing.values)
        )
        classes = [self.layer_class(n) for n in range(len(program.parts))]
        model = self.model_class()
        used = [PARTS[p].prelude for parts in program.parts for p in parts]
        used += [KINDS[t.kind].prelude for t in program.things] + [
            _HOLD_PRELUDE.get(t.held, "") for t in program.things
        ]
        prelude = "".join(dict.fromkeys(used))
        dynamic = "    torch._dynamo.mark_dynamic(x, 0)\n" if program.dynamic else ""
        apply = "@region\ndef apply(l, h): return l(h)\n" if program.form == "function" else ""
        make = ["def make():", "    global ROOT", "    ROOT = M()", "    return ROOT"]
        if not program.training:
            # Not by eval(): it asks the module for its children by a method that the user may have replaced.
            make[3:3] = [
                "    def stop(m):",
                "        m.training = False",
                "        for c in m._modules.values(): c is None or stop(c)",
            ]
            make[6:6] = ["    stop(ROOT)", "    for l in layers(ROOT): stop(l)"]
        inputs = (
            f"def inputs(n):\n    torch.manual_seed(n)\n    x = torch.randn({list(program.batches)}[n], 3)\n{dynamic}"
            f"    return x.requires_grad_({program.input_grad and program.grad})\n"
            f"CALLS, GRAD = {len(program.batches)}, {program.grad}\n"
        )
        return "\n".join(
            t
            for t in (
                prelude,
                pools,
                *self.helpers,
                apply,
                *classes,
                model,
                self.tools(),
                self.changes(),
                "\n".join(make) + "\n",
                inputs,
            )
            if t
        )


def program_text(program: Program) -> str:
    return _Printer(program).text()
