"""The compiled CPU kernels: built once per machine with the C compiler, loaded by ctypes."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("native.c")
FLAGS = ("-O3", "-march=native", "-pthread", "-shared", "-fPIC", "-ffp-contract=off")
ENVIRONMENT_VARIABLE = "OUTRIDER_KERNELS"
TYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}


class KernelsUnavailable(Exception):
    """There are no native kernels here; the message says why. The torch path takes over."""


class Segment(ctypes.Structure):
    """One weight matrix of a linear call, see ``segment`` in native.c."""

    _fields_ = (
        ("w", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("ldy", ctypes.c_int64),
    )


class Slab(ctypes.Structure):
    _fields_ = (
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("heads", ctypes.c_int64),
        ("dk", ctypes.c_int64),
        ("dv", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("type", ctypes.c_int),
    )


class Attention(ctypes.Structure):
    _fields_ = (
        ("q", ctypes.c_void_p),
        ("q_row", ctypes.c_int64),
        ("q_head", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("q_heads", ctypes.c_int64),
        ("starts", ctypes.c_void_p),
        ("past", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("table_stride", ctypes.c_int64),
        ("num_sequences", ctypes.c_int64),
        ("sinks", ctypes.c_void_p),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


class Layer(ctypes.Structure):
    """One decoder layer, see ``layer`` in native.c."""

    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("qkv", Segment * 3),
        ("o", Segment),
        ("gate_up", Segment * 2),
        ("down", Segment),
        ("pool", Slab),
    )


class Pass(ctypes.Structure):
    """Rows on their way through the layers, see ``pass`` in native.c."""

    _fields_ = (
        ("hidden", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("kv_rows", ctypes.c_void_p),
        ("num_slots", ctypes.c_int64),
        ("attend", ctypes.POINTER(Attention)),
        ("eps", ctypes.c_float),
        ("type", ctypes.c_int),
    )


@dataclass(frozen=True, slots=True)
class Kernels:
    """Entry points of the loaded library; pointers are integers, counts are C ints of 64 bits."""

    name: str
    threads: int
    linear: Callable[..., None]
    rms_norm: Callable[..., None]
    kv_write: Callable[..., None]
    attention: Callable[..., None]
    layers: Callable[..., None]
    copy_block: Callable[..., None]
    top: Callable[..., None]


def load_kernels(*, threads: int | None = None) -> Kernels:
    """Compile (or take from the cache) and load the kernels.

    Raises: KernelsUnavailable if they are switched off, or there is no working C compiler.
    """
    choice = os.environ.get(ENVIRONMENT_VARIABLE, "auto")
    if choice not in ("auto", "native", "torch"):
        raise ValueError(f"{ENVIRONMENT_VARIABLE} must be auto, native or torch, not {choice!r}")
    if choice == "torch":
        raise KernelsUnavailable(f"{ENVIRONMENT_VARIABLE}=torch")
    path = _compiled()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelsUnavailable(f"cannot load {path}: {error}") from error
    pointer, count, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    linear, rms_norm = library.outrider_linear, library.outrider_rms_norm
    kv_write, attention = library.outrider_kv_write, library.outrider_attention
    instructions = library.outrider_instructions
    instructions.restype = ctypes.c_char_p
    linear.argtypes = (pointer, count, count, count, flag, flag, pointer, flag, flag)
    rms_norm.argtypes = (
        *(pointer, count, pointer, pointer, count, count),
        *(flag, ctypes.c_float, flag),
    )
    kv_write.argtypes = (
        *(pointer, pointer, count, count, pointer, count, count),
        *(pointer, pointer, count),
    )
    attention.argtypes = (pointer, pointer, flag)
    layers = library.outrider_layers
    layers.argtypes = (pointer, count, count, pointer, flag)
    copy_block = library.outrider_copy_block
    copy_block.argtypes = (pointer, count, count, pointer, count)
    top = library.outrider_top
    top.argtypes = (pointer, count, count, count, count, pointer, pointer)
    for function in (linear, rms_norm, kv_write, attention, layers, copy_block, top):
        function.restype = None
    return Kernels(
        name=f"native-{instructions().decode()}",
        threads=threads or _usable_cpus(),
        linear=linear,
        rms_norm=rms_norm,
        kv_write=kv_write,
        attention=attention,
        layers=layers,
        copy_block=copy_block,
        top=top,
    )


@cache
def shared_kernels() -> Kernels | None:
    """Return the kernels where this process can have any, for what is the same without them."""
    try:
        return load_kernels()
    except KernelsUnavailable:
        return None


def _usable_cpus() -> int:
    """OMP_NUM_THREADS where it is set, else the CPUs this process may run on.

    torch.get_num_threads() will not do: the first engine of a process sets it to 1.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _compiled() -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise KernelsUnavailable("no C compiler (cc) on the PATH")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return _compiled_in(Path(base) / "outrider", compiler, FLAGS)


@cache
def _compiled_in(folder: Path, compiler: str, flags: tuple[str, ...]) -> Path:
    """Return the library, found in the folder or built into it; elsewhere if that cannot be."""
    source = SOURCE.read_bytes()
    facts = (source, " ".join(flags).encode(), _cpu().encode(), compiler.encode())
    key = hashlib.blake2b(b"\0".join(facts), digest_size=12).hexdigest()
    target = folder / f"kernels-{key}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = tempfile.TemporaryDirectory(dir=folder)
    except OSError:  # a read-only home: build again in every process
        folder = Path(tempfile.mkdtemp(prefix="outrider-"))
        target = folder / target.name
        opened = tempfile.TemporaryDirectory(dir=folder)
    with opened as scratch:
        built = Path(scratch) / "kernels.so"
        command = [compiler, *flags, str(SOURCE), "-o", str(built), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KernelsUnavailable(f"{compiler} failed: {done.stderr.strip()[-500:]}")
        os.replace(built, target)  # whole or not at all, whoever else builds it now
    return target


def _cpu() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    wanted = ("flags", "Features", "model name", "CPU part")
    return platform.machine() + "".join(dict.fromkeys(x for x in lines if x.startswith(wanted)))
