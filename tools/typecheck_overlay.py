"""Type-check the overlay's files against the installed torch.

mypy takes torch/a/b.py for the module torch.a.b, and then no longer sees the stock module that an extension extends.
So it gets the files under other names, which makes `import torch.a.b` mean the installed one. Modules that stock has
not are unknown to it and taken for Any.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path


ROOT = Path(__file__).resolve().parents[1]
# An extension defines methods outside their classes (misc). torch's stubs leave out private functions in C, and a
# module that is replaced whole still looks like stock's (attr-defined).
LENIENT = [
    "--disable-error-code=attr-defined",
    "--disable-error-code=misc",
    "--disable-error-code=import-untyped",
    "--ignore-missing-imports",
]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        names = {}
        for path in sorted((ROOT / "torch").rglob("*.py")):
            relative = path.relative_to(ROOT)
            name = "__".join(relative.parts)
            (Path(folder) / name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
            names[name] = str(relative)
        command = [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent", "--check-untyped-defs"]
        command += [*LENIENT, f"--cache-dir={ROOT / '.mypy_cache' / 'overlay'}", *sorted(names)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    output = done.stdout + done.stderr
    for name, relative in names.items():
        output = output.replace(name, relative)
    print(output, end="")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
