"""Which vector instructions the C++ compiler and the processor know, asked once for all processes of a test run."""

from __future__ import annotations

import os


VARIABLE = "TORCHINDUCTOR_VEC_ISA_OK"


def answer_once() -> None:
    """Inductor takes each process's answer from a compile and a load of each set: 8 s in a new cache folder, else 3 s.

    Where all of them work, the tests' processes are told so by an environment variable of Inductor's.  Otherwise each
    process asks.
    """
    if VARIABLE in os.environ:
        return
    from torch._inductor.cpu_vec_isa import supported_vec_isa_list, valid_vec_isa_list, x86_isa_checker

    has = set(x86_isa_checker())
    expected = [isa for isa in supported_vec_isa_list if has.issuperset(str(isa).split())]
    if expected and valid_vec_isa_list() == expected:
        os.environ[VARIABLE] = "1"
