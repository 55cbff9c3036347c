"""The test-only device type "vdev" (tests/vdev), built once and used in processes of its own.

In the test: `run(program)`, which is skipped where there is no compiler. In the program:
`import virtual_device; virtual_device.init(2, caps={0: 1 << 20})`, then devices "vdev:0", "vdev:1".
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "vdev" / "vdev.cpp"
NAME = "_vdev"


def run(program: str, *, timeout_s: float = 300) -> Any:
    """What the program prints last, read as JSON; it runs in a new process on one thread."""
    if shutil.which("g++") is None:
        pytest.skip("the test-only device needs a C++ compiler (g++)")
    build()
    paths = filter(None, [str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    # It ends at once: autograd's threads may still hold tensors of a device type that is torn down.
    ending = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"
    done = subprocess.run(
        [sys.executable, "-c", program + ending],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment,
    )
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def build() -> Path:
    """The compiled extension; some 15 s of CPU the first time, for one process of a test run.

    Whatever it depends on, compiler and options included, has a folder of its own.
    """
    command = compile_command()
    version = subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True)
    tag = f"{torch.__version__} {sys.version} {version.stdout} {command} {SOURCE.read_text()}"
    folder = ROOT / "target" / "vdev" / hashlib.sha256(tag.encode()).hexdigest()[:16]
    library = folder / f"{NAME}.so"
    if library.exists():  # whole, as it got its name when it was
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the process, however it ends
        if not library.exists():
            made = folder / "unfinished.so"
            subprocess.run([*command, "-o", str(made)], check=True, timeout=600)
            made.replace(library)
    return library


def compile_command() -> list[str]:
    home = Path(torch.__file__).parent
    headers = [home / "include", home / "include/torch/csrc/api/include"]
    headers.append(Path(sysconfig.get_paths()["include"]))
    libraries = ["-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python"]
    command = ["g++", "-O1", "-fPIC", "-shared", "-std=c++20", f"-DTORCH_EXTENSION_NAME={NAME}"]
    command += ["-DTORCH_API_INCLUDE_EXTENSION_H", "-D_GLIBCXX_USE_CXX11_ABI=1"]
    command += [f"-I{path}" for path in headers]
    return [*command, str(SOURCE), f"-L{home / 'lib'}", *libraries, f"-Wl,-rpath,{home / 'lib'}"]


def init(num_devices: int, caps: dict[int, int] | None = None) -> ModuleType:
    """Registers the device type, once in a process; returns its counters.

    They are used(k), peak(k), reset_peak(k), set_cap(k, nbytes), ops(k), in_bytes(k), copies() and
    reset_counts().
    """
    specification = importlib.util.spec_from_file_location(NAME, build())
    assert specification is not None
    assert specification.loader is not None
    counters = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(counters)
    counters.set_count(num_devices)
    torch.utils.rename_privateuse1_backend("vdev")
    torch._register_device_module("vdev", _device_module(counters))
    torch.utils.generate_methods_for_privateuse1_backend()
    for device, nbytes in (caps or {}).items():
        counters.set_cap(device, nbytes)
    return counters


def _device_module(counters: ModuleType) -> type:
    """What torch looks for under `torch.vdev`; random numbers are the CPU's."""

    def index_of(device: Any) -> int:
        return device if isinstance(device, int) else torch.device(device).index or 0

    class Module:
        is_available = is_initialized = staticmethod(lambda: True)
        _is_in_bad_fork = staticmethod(lambda: False)
        device_count = staticmethod(counters.count)
        current_device = staticmethod(counters.current)
        set_device = staticmethod(lambda device: counters.set_current(index_of(device)))
        manual_seed_all = staticmethod(lambda seed: None)
        get_rng_state = staticmethod(lambda device="vdev": torch.get_rng_state())
        set_rng_state = staticmethod(lambda state, device="vdev": torch.set_rng_state(state))
        synchronize = staticmethod(lambda device=None: None)
        get_amp_supported_dtype = staticmethod(lambda: [torch.float16, torch.bfloat16])
        memory_allocated = staticmethod(lambda device=0: counters.used(index_of(device)))
        max_memory_allocated = staticmethod(lambda device=0: counters.peak(index_of(device)))
        reset_peak_memory_stats = staticmethod(lambda d=0: counters.reset_peak(index_of(d)))

        class device:
            def __init__(self, device: Any) -> None:
                self.index, self.before = index_of(device), 0

            def __enter__(self) -> None:
                self.before = counters.current()
                counters.set_current(self.index)

            def __exit__(self, *_: object) -> None:
                counters.set_current(self.before)

    return Module
