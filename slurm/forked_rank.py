"""Importing a trainer's modules once, and running ranks in forks of the process that did.

:mod:`slurm.fork_server` does the forking. Both need the standard library alone, from Python 3.8 on.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib
import os
import random
import resource
import runpy
import signal
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import Any, Iterable, Mapping, NoReturn, Sequence  # noqa: UP035 - Python 3.8

# Read when srun, the loader, the interpreter or a module starts: too late in a fork. A trial that
# sets one is started afresh, or by a server that was started with the variable.
READ_AT_START = (
    *("SLURM_", "SRUN_"),
    *("PATH", "PYTHON", "LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("TORCH", "PYTORCH", "TRITON_", "NVTE_", "DS_", "XLA_", "JAX_", "HF_", "TRANSFORMERS_"),
)


def read_at_start(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """The variables that a forked rank would get too late."""
    return sorted(item for item in env.items() if item[0].startswith(READ_AT_START))


def load(modules: Iterable[str], order: Mapping[str, Any] | None = None) -> None:
    """Import the modules that ranks need; ranks meet an import's error again, and report it.

    A package that is run also needs ``PACKAGE.__main__``. Imports see the environment and the
    folder of ``order``, the first trial's, as in an interpreter of its own.
    """
    before = list(sys.path)
    env: Mapping[str, str] = order["env"] if order is not None else {}
    environ = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    # Otherwise torch.cuda.is_available() initializes CUDA, which is then unusable in forks.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if order is not None:
        sys.path.insert(0, _import_folder(order))
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            print(f"meshtune: cannot import {module} beforehand: {error}", file=sys.stderr)
        if module.endswith(".__main__"):
            sys.modules.pop(module, None)  # runpy warns if it is already imported
    sys.path[:] = before
    for name, value in environ.items():  # other variables that imports have set stay
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    finalize: Any = weakref.finalize
    for finalizer in list(finalize._registry):
        finalizer.atexit = False  # ranks need not clean up what they share (torch: 25 ms)
    gc.freeze()  # collections in the ranks then leave the shared pages shared


def started_threads() -> int:
    """Number of threads of this process besides the main one."""
    return len(list(Path("/proc/self/task").iterdir())) - 1


def parsed_python(argv: Sequence[str]) -> tuple[str, list[str]] | None:
    """A Python command's form (``-m``, ``-c`` or "" for a script) and the words after it.

    None if it is no Python command, or has interpreter options that a fork cannot apply.
    """
    program, rest = Path(argv[0]).name, list(argv[1:])
    if not program.startswith("python"):
        return None
    while rest and rest[0] == "-u":  # every rank is unbuffered
        del rest[0]
    if len(rest) > 1 and rest[0] in ("-m", "-c"):
        return rest[0], rest[1:]
    return ("", rest) if rest and not rest[0].startswith("-") else None


def run_rank(order: Mapping[str, Any], index: int, threads: int) -> NoReturn:
    """Run a rank's program in this process as its command would, then exit.

    ``threads`` is the number that imports have started; :mod:`slurm.agent` describes the order.
    """
    code: Any = 0
    try:
        _run(order, index, threads)
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error, trace)
        code = 1
    _exit(code)


def _exit(code: int) -> NoReturn:
    """Exit as the interpreter does, but without its teardown.

    With torch loaded that takes a second or more: freeing memory shared with the parent copies it.
    """
    with contextlib.suppress(Exception):
        module: Any = threading
        module._shutdown()  # waits for threads that are not daemons
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code & 0xFF)


def _run(order: Mapping[str, Any], index: int, threads: int) -> None:
    os.chdir(order["cwd"])
    if order["clear"]:
        os.environ.clear()
    os.environ.update({**order["env"], **order["ranks"][index]})
    if order["memory_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (order["memory_bytes"],) * 2)
    argv = order["argv"]
    if why := _unfit_for_forks(threads):
        if os.environ.get("RANK") == "0":
            print(f"meshtune: starts afresh, as {why}", file=sys.stderr, flush=True)
        _execute(argv)
    _refresh_modules(order["cwd"])
    sys.path.insert(0, _import_folder(order))
    how, rest = parsed_python(argv) or ("", [])
    # As in the interpreter, __main__ stays for code that runs or pickles after the program's end.
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.argv = ["-c", *rest[1:]] if how == "-c" else rest
    if how == "-m":
        run: Any = runpy
        run._run_module_as_main(rest[0])  # what the interpreter itself calls
    elif how == "-c":
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        path = Path(order["cwd"], rest[0])
        main.__file__ = str(path)
        exec(compile(path.read_bytes(), str(path), "exec"), main.__dict__)


def _refresh_modules(folder: str) -> None:
    """Give imported modules the state that they would have in a fresh process."""
    random.seed()
    modules: dict[str, Any] = dict(sys.modules)
    if "numpy.random.mtrand" in modules:  # numpy imports it when it is used first
        modules["numpy.random.mtrand"].seed()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if "torch" in modules and threads.isdecimal():  # torch read the server's when imported
        modules["torch"].set_num_threads(int(threads))
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].ORIGINAL_DIR = folder  # its children start there


def _import_folder(order: Mapping[str, Any]) -> str:
    """First entry of ``sys.path`` that the interpreter sets for a command."""
    how, rest = parsed_python(order["argv"]) or ("", [""])
    cwd = str(order["cwd"])
    if how:
        return cwd if how == "-m" else ""
    return str(Path(cwd, rest[0]).resolve().parent)


def _unfit_for_forks(threads: int) -> str:
    """Why the imported modules do not survive a fork; "" if they do."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and getattr(torch.cuda, "_is_in_bad_fork", bool)():
        return "an import has initialized the GPU"
    return f"imports have started {threads} threads" if threads else ""


def _execute(argv: Sequence[str]) -> None:
    # Python ignores these two signals; another program expects their default handling.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(argv[0], list(argv))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and argv[0] == "python":
            _execute(["python3", *argv[1:]])  # many images have it alone
        os.write(2, f"meshtune: cannot start {argv[0]!r}: {error.strerror}\n".encode())
        raise SystemExit(127 if isinstance(error, FileNotFoundError) else 126) from None
