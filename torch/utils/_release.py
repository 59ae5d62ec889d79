"""Which release of torch this is, for the few places that have to ask."""

from __future__ import annotations

import torch


RELEASE = tuple(int(number) for number in torch.__version__.split(".")[:2])
