"""A CUDA device that is not there: enough of one for Inductor to write its code for CUDA, and for Triton to compile it.

Tensors are fake tensors on "cuda", and nothing is computed. The properties are those of a card with compute capability 9.0.
``stand_in`` is called once, in a process of its own, before torch is imported.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any


CAPABILITY = (9, 0)
PROPERTIES = types.SimpleNamespace(
    name="a device that is not there",
    major=CAPABILITY[0],
    minor=CAPABILITY[1],
    gcnArchName="",
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=80 * 2**30,
    shared_memory_per_block=48 * 2**10,
    shared_memory_per_block_optin=227 * 2**10,
    L2_cache_size=50 * 2**20,
)

# Functions of torch that ask the driver, under the names that its libraries know them by. A torch that is built without CUDA
# runs backward passes of fake CUDA tensors, so there is no accelerator; attention is chosen by the properties of a device
# (the first members of CUDA 13's cudaDeviceProp), so there is one as soon as the guard of devices is the one without a driver.
_SHIM = """
#include <stddef.h>
int stand_in_devices = 0;
static union {
  struct {
    char name[256], uuid[16], luid[8]; unsigned luid_mask; size_t memory, shared_memory; int registers, warp_size;
    size_t pitch; int threads, block[3], grid[3]; size_t constant_memory; int major, minor;
  } members;
  char all[4096];
} properties;
unsigned short _ZN2at11accelerator14getAcceleratorEb(_Bool checked) { return 0; }
_Bool _ZN2at11accelerator13isAcceleratorEN3c1010DeviceTypeE(signed char type) { return 0; }
signed char _ZN3c104cuda12device_countEv(void) { return stand_in_devices; }
void *_ZN2at4cuda26getCurrentDevicePropertiesEv(void) {
  properties.members.major = MAJOR; properties.members.minor = MINOR; properties.members.warp_size = 32;
  return &properties;
}
"""


def reason_against() -> str | None:
    """Why there can be no stand-in here."""
    import importlib.metadata
    import importlib.util

    if shutil.which("cc") is None:
        return "there is no C compiler"
    if tuple(map(int, importlib.metadata.version("torch").split(".")[:2])) < (2, 15):
        return "the installed torch is older than 2.15"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    folder = importlib.util.find_spec("torch").submodule_search_locations[0]
    if not (Path(folder) / "lib" / "libtorch_cuda.so").exists():
        return "torch was built without CUDA"
    return None


def _load_shim() -> ctypes.CDLL:
    assert "torch" not in sys.modules, "torch has bound its functions already"
    folder = Path(tempfile.mkdtemp())
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(_SHIM)
    capability = [f"-D{name}={number}" for name, number in zip(("MAJOR", "MINOR"), CAPABILITY)]
    subprocess.run(["cc", "-shared", "-fPIC", *capability, "-o", library, source], check=True)
    return ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


class _Driver:
    """Triton's driver: a target, and nothing that runs."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 10 * CAPABILITY[0] + CAPABILITY[1], 32)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def stand_in() -> None:
    """Makes this process believe in one CUDA device, as far as a compiler asks."""
    shim = _load_shim()
    import torch
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.runtime import triton_helpers
    from triton.runtime.driver import driver

    driver.set_active(_Driver())
    triton_helpers.set_driver_to_gpu = lambda: None  # each kernel calls it
    torch._C._ensureCUDADeviceGuardSet()
    ctypes.c_int.in_dll(shim, "stand_in_devices").value = 1
    for owner in (torch.cuda, CudaInterface, CudaInterface.Worker):
        answer = staticmethod if isinstance(owner, type) else lambda function: function
        owner.get_device_properties = answer(lambda device=None: PROPERTIES)
        owner.current_device = answer(lambda: 0)
        owner.is_bf16_supported = answer(lambda including_emulation=True: True)
    torch.cuda.is_available = lambda: False  # or Dynamo would save the random state of the device
    CudaInterface.is_available = staticmethod(lambda: True)
    CudaInterface.device_count = staticmethod(lambda: 1)
    CudaInterface.get_compute_capability = staticmethod(lambda device=None: 10 * CAPABILITY[0] + CAPABILITY[1])
    torch.cuda.get_device_capability = lambda device=None: CAPABILITY
    torch.cuda.get_device_name = lambda device=None: PROPERTIES.name
