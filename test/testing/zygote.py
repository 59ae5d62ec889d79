"""A process that has imported all that a compile needs, and forks for each program that it is asked to run.

``zygote.py``, with requests on stdin, a line of JSON each: {"run": program, "arguments", "environment", "out", "err"}
is answered by the process's id, {"wait": id} by its exit status.  Importing torch and Inductor takes longer than what the
programs compile.  A process that forks has begun no thread and compiled no program.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any


def _child(run: str, arguments: list[str], environment: dict[str, str], out: str, err: str) -> None:
    """Runs a program as a process of its own would; does not return."""
    status = 1
    try:
        for path, descriptor in ((out, 1), (err, 2)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, descriptor)
            os.close(file)
        os.environ.clear()
        os.environ.update(environment)
        importlib.import_module(f"testing.{run}").run(arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _answer(request: dict[str, Any]) -> int:
    if "wait" in request:
        return os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
    process = os.fork()
    if not process:
        _child(**request)
    return process


def main() -> None:
    import torch._inductor.compile_fx  # noqa: F401
    from testing import cached_compile, cached_model  # noqa: F401
    from torch._inductor import cpu_vec_isa

    cpu_vec_isa.valid_vec_isa_list()  # else each process asks the C++ compiler where its cache folder is new
    for line in sys.stdin:
        print(_answer(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
