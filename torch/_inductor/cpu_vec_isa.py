"""Overlay of torch._inductor.cpu_vec_isa: what works here may have been found out already.

See Note [The compiler is asked early] in region_probe.py.
"""

from __future__ import annotations

from typing import Any

from torch_regions.overlay import replaces, stock


@replaces("VecISA.check_build")
def check_build(self: Any, code: str) -> bool:
    from torch._inductor.region_probe import known_to_work

    if known_to_work(self, code):
        return True
    return stock("torch._inductor.cpu_vec_isa:VecISA.check_build")(self, code)  # type: ignore[no-any-return]
