"""CUDA source to a function on a GPU: NVRTC, then the driver."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from framework.errors import ConfigError, Problem


def _nvrtc() -> Any:
    if importlib.util.find_spec("cuda") is not None:
        from cuda.bindings import nvrtc

        try:
            nvrtc.nvrtcVersion()
        except RuntimeError:  # the bindings are there, the library they load is not
            pass
        else:
            return nvrtc
    problem = Problem(
        where="backend",
        got="no NVRTC",
        expected="it, to compile kernels for the GPU",
        hint="pip install 'multistage[cuda]'",
    )
    raise ConfigError(problem)


def driver() -> Any:
    """The CUDA driver interface."""
    from cuda.bindings import driver as interface

    return interface


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Result of a driver function; RuntimeError with its name and the driver's word for what failed."""
    error, *results = function(*arguments)
    if int(error):
        raise RuntimeError(f"{function.__name__}: {error.name}")
    return results[0] if len(results) == 1 else results


def compile_source(source: str, defines: Mapping[str, object], compute_capability: str) -> bytes:
    """Machine code of CUDA source for one architecture ("9.0").

    Raises:
        ConfigError: NVRTC is not installed.
        RuntimeError: the source does not compile; has the compiler's log.
    """
    nvrtc = _nvrtc()
    options = [f"--gpu-architecture=sm_{compute_capability.replace('.', '')}", "-std=c++17"]
    options += [f"-D{name}={value}" for name, value in defines.items()]
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), b"decoder.cu", 0, [], [])
    if int(error):
        raise RuntimeError(f"nvrtcCreateProgram: {error.name}")
    try:
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if int(error):
            log = bytearray(call(nvrtc.nvrtcGetProgramLogSize, program))
            view = bytes(log)
            nvrtc.nvrtcGetProgramLog(program, view)
            raise RuntimeError(f"nvrtcCompileProgram: {error.name}\n{view.decode(errors='replace')}")
        code = bytes(call(nvrtc.nvrtcGetCUBINSize, program))
        (error,) = nvrtc.nvrtcGetCUBIN(program, code)
        if int(error):
            raise RuntimeError(f"nvrtcGetCUBIN: {error.name}")
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def source(name: str, machine: str | None = None) -> str:
    """The source `<name>.cu`, behind that of the machine it needs; another text may take the machine's place."""
    files = resources.files(__package__)
    return (files.joinpath("machine.cu").read_text() if machine is None else machine) + files.joinpath(
        f"{name}.cu"
    ).read_text()
