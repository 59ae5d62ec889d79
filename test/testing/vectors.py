"""Which vector instructions the C++ compiler and the processor know, asked once for all processes of a test run."""

from __future__ import annotations

import os
from typing import Any


VARIABLE = "TORCHINDUCTOR_VEC_ISA_OK"


def environment_without(*beginnings: str) -> dict[str, str]:
    """The environment but for variables that begin so. Processes of the tests keep the answer."""
    return {name: value for name, value in os.environ.items() if not name.startswith(beginnings) or name == VARIABLE}


def of_the_processor() -> list[Any]:
    """The sets of vector instructions that the processor has, the best one first."""
    from torch._inductor.cpu_vec_isa import supported_vec_isa_list, x86_isa_checker

    has = set(x86_isa_checker())
    return [isa for isa in supported_vec_isa_list if has.issuperset(str(isa).split())]


def answer_once() -> None:
    """Inductor takes each process's answer from a compile and a load of each set: 8 s in a new cache folder, else 3 s.

    Where all of them work, the tests' processes are told so by an environment variable of Inductor's.  Otherwise each
    process asks.
    """
    if VARIABLE in os.environ:
        return
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    expected = of_the_processor()
    if expected and valid_vec_isa_list() == expected:
        os.environ[VARIABLE] = "1"
