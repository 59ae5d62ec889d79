"""Finds as files: each is a program that runs by itself, and says in its first lines how it was found."""

from __future__ import annotations

import json
from pathlib import Path

from fuzz_program import Program, tags
from fuzz_search import Find
from fuzz_text import IMPORTS, program_text


# What a file does when it is run: eager, flat and regions, and the first difference.
_DRIVER = """
def run(backend, flag):
    torch._dynamo.reset(); torch._dynamo.utils.counters.clear(); torch.manual_seed(0)
    m, seen = make(), []
    g = torch.compile(m, backend=backend) if backend else m
    for n in range(CALLS):
        if n: CHANGES[n - 1](m)
        x = inputs(n); torch.manual_seed(100 + n)
        globals().get("COUNTS", {}).clear()
        with torch.set_grad_enabled(GRAD): out = g(x)
        if out.requires_grad: out.sum().backward()
        seen.append((out.detach().tolist(), dict(globals().get("COUNTS", {})), torch._dynamo.utils.counters["frames"]["ok"]))
    return seen
if __name__ == "__main__":
    import sys
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    torch._dynamo.config.use_graph_deduplication = FLAG and what == "regions"
    torch._dynamo.config.verify_region_reuse = VERIFY and what == "regions"
    if what: print(*run(None if what == "eager" else BACKEND, FLAG), sep="\\n")
    else:
        import subprocess
        for what in ("eager", "flat", "regions"): print(what, flush=True); subprocess.run([sys.executable, __file__, what])
"""
_HEAD = '''\
"""{what}

{message}

Found with mode {mode} on {backend}, after {after} programs.  Run: eager, flat and with regions, one line a call.
"""
'''


def write(find: Find, folder: Path) -> Path:
    """Writes ``find`` to ``folder`` as a program and returns its path."""
    kind, found = find.signature
    what = f"{kind}: {', '.join(sorted(found)) or 'layers alone'}"
    message = find.failure.message.replace("\\", "/").replace('"""', "'''")[:1500]
    mode, _, verify = find.mode.partition("+")
    lines = [
        _HEAD.format(what=what, message=message, mode=find.mode, backend=find.backend, after=find.after),
        f"# spec: {find.program.to_json()}\n# found: {json.dumps([kind, sorted(found), find.mode, find.backend])}\n",
        "import sys\n" + IMPORTS,
        f"FLAG, MARK, VERIFY, BACKEND = {mode != 'mark'}, {mode != 'flag'}, {bool(verify)}, {find.backend!r}\n",
        "region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)\n",
        "# program\n",
        program_text(find.program),
        "# end\n",
        _DRIVER,
    ]
    path = folder / f"{find.name}.py"
    path.write_text("".join(lines))
    return path


def text_of(path: Path) -> str:
    """The program of a file that ``write`` has written."""
    return path.read_text().split("# program\n", 1)[1].split("# end\n", 1)[0]


def signatures(folder: Path) -> list[tuple[str, frozenset[str]]]:
    """What the files of a folder say that was found."""
    found = []
    for path in sorted(folder.glob("*.py")):
        for line in path.read_text().splitlines():
            if line.startswith("# found: "):
                kind, names, *_ = json.loads(line.removeprefix("# found: "))
                found.append((kind, frozenset(names)))
    return found


def is_known(folder: Path, kind: str, names: frozenset[str]) -> bool:
    """Whether a program that failed so has all that a smaller find of the same kind consists of."""
    return any(kind == other and less <= names for other, less in signatures(folder))


def crash(program: Program, mode: str, backend: str, folder: Path, how: str) -> Path:
    """Writes a program that ended its process."""
    from fuzz_oracle import Failure

    return write(Find(program, mode, backend, Failure("crash", how), 0), folder)


__all__ = ["crash", "is_known", "signatures", "tags", "text_of", "write"]
