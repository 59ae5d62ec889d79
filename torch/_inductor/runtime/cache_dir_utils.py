"""Overlay of torch._inductor.runtime.cache_dir_utils: a read-only cache folder is not an error."""

from __future__ import annotations

import os

from torch._inductor.runtime.cache_mirror import usable

from torch_regions.overlay import replaces, stock


@replaces
def cache_dir() -> str:
    wanted = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if wanted is None:
        return stock("torch._inductor.runtime.cache_dir_utils:cache_dir")()
    # Processes that are started later read this variable.
    folder = os.environ["TORCHINDUCTOR_CACHE_DIR"] = usable(os.path.abspath(wanted))
    os.makedirs(folder, exist_ok=True)
    return folder
