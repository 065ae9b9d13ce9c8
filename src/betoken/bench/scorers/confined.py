"""Runs one untrusted program in this process, after giving up everything that it does not need.

Started by `sandbox.run_code` as a script of its own (python -I -S), never imported by the library. Reads {program,
tests, token, limits} from standard input and writes one line of JSON to standard output at the end: without that line
the program did not pass. On Linux it gives up, as far as the kernel has it: the network (a namespace without devices),
writing outside the current folder (Landlock), and processes, threads, sockets, signals and changes of owner or mode
(seccomp). Everywhere it sets resource limits and refuses the same in Python (an audit hook, which cannot be removed).
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
import types
from collections.abc import Callable

_DENIED = {
    "x86_64": (0xC000003E, (
        76, 132, 235, 261, 280,  # truncate and utime by path
        41, 42, 44, 46, 49, 53,  # socket, connect, sendto, sendmsg, bind, socketpair
        56, 57, 58, 59, 322, 435,  # clone, fork, vfork, execve, execveat, clone3
        62, 129, 200, 234, 297, 424, 101, 310, 311,  # kill and its kin, pidfd_send_signal, ptrace, process_vm_*
        90, 91, 92, 93, 94, 260, 268, 452, 188, 189, 190,  # chmod, chown, setxattr and their kin
        109, 112, 160, 302, 161, 165, 166, 272, 308, 155,  # setpgid, setsid, limits, chroot, mounts, namespaces
        164, 227, 159, 169, 170, 171, 175, 176, 313, 246, 320, 321, 425, 248, 250,  # clock, modules, io_uring, keys
    )),
    "aarch64": (0xC00000B7, (
        45, 88,
        198, 199, 200, 203, 206, 211,
        220, 221, 281, 435,
        129, 130, 131, 138, 240, 424, 117, 270, 271,
        52, 53, 54, 55, 452, 5, 6, 7,
        154, 157, 164, 261, 51, 39, 40, 41, 97, 268,
        170, 112, 171, 142, 161, 162, 105, 106, 273, 104, 294, 280, 425, 217, 219,
    )),
}  # fmt: skip
"""Machine -> its number for seccomp and the system calls that are refused, in the same groups."""

_REFUSED = (
    "socket.", "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "pty.",
    "ctypes.", "os.chmod", "os.chown", "os.putenv", "signal.pthread_kill", "mmap.__new__", "resource.setrlimit",
)  # fmt: skip
"""Audit events that Python itself refuses, by their beginning."""
_WRITES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.utime")


def main() -> None:
    """Read, confine, run, answer."""
    asked = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    held = confine(asked["limits"])
    error = run(asked["program"], asked["tests"])
    reply = {"token": asked["token"], "error": error, "held": held}
    os.write(out, b"\n" + json.dumps(reply).encode() + b"\n")
    os._exit(0)


def run(program: str, tests: str) -> str | None:
    """What went wrong, in a line; None if program and tests ran to their end."""
    stage = "program"
    module = types.ModuleType("candidate")
    sys.modules["candidate"] = module
    try:
        exec(compile(program, "program", "exec"), module.__dict__)
        stage = "tests"
        exec(compile(tests, "tests", "exec"), module.__dict__)
    except BaseException as error:  # SystemExit and KeyboardInterrupt are failures too
        return f"{type(error).__name__} in the {stage}: {error!s:.200}"
    return None


def confine(limits: dict[str, int]) -> list[str]:
    """Give everything up; the names of the barriers that stand."""
    libc = ctypes.CDLL(None, use_errno=True)
    held = []
    if sys.platform == "linux":
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # die with the parent
        if _no_network(libc):
            held.append("network namespace")
        libc.prctl(38, 1, 0, 0, 0)  # no new privileges: what Landlock and seccomp ask for
        if _no_writes(libc):
            held.append("landlock")
    _limit(limits)
    if sys.platform == "linux" and _no_calls(libc):
        held.append("seccomp")
    sys.addaudithook(_hook(os.getcwd()))
    return [*held, "limits", "python"]


def _no_network(libc: ctypes.CDLL) -> bool:
    new_net, new_user = 0x40000000, 0x10000000
    return libc.unshare(new_net) == 0 or libc.unshare(new_user | new_net) == 0


def _no_writes(libc: ctypes.CDLL) -> bool:
    """Landlock, first version: every way of writing or removing that it knows, allowed below the current folder."""
    writing = 0x1FF2  # write_file, remove_*, make_*: all but execute, read_file, read_dir
    ruleset = libc.syscall(444, ctypes.c_char_p(struct.pack("Q", writing)), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return False
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    rule = struct.pack("=Qi", writing, here)
    added = libc.syscall(445, ruleset, 1, ctypes.c_char_p(rule), 0)
    ok = added == 0 and libc.syscall(446, ruleset, 0) == 0
    os.close(here)
    os.close(ruleset)
    return bool(ok)


def _no_calls(libc: ctypes.CDLL) -> bool:
    """A seccomp filter that answers EPERM to the calls of `_DENIED` and kills what calls under another machine."""
    if platform.machine() not in _DENIED:
        return False
    machine, numbers = _DENIED[platform.machine()]
    load, equal, above, answer = 0x20, 0x15, 0x35, 0x06
    kill, allow, refuse = 0x80000000, 0x7FFF0000, 0x00050001
    code = [(load, 0, 0, 4), (equal, 1, 0, machine), (answer, 0, 0, kill), (load, 0, 0, 0)]
    code += [(above, 0, 1, 0x40000000), (answer, 0, 0, refuse)]  # the x32 twins of all calls
    for number in numbers:
        code += [(equal, 0, 1, number), (answer, 0, 0, refuse)]
    code.append((answer, 0, 0, allow))
    packed = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in code))
    program = struct.pack("@HxxxxxxP", len(code), ctypes.addressof(packed))
    return bool(libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0)


def _limit(limits: dict[str, int]) -> None:
    wanted = {
        resource.RLIMIT_CPU: limits["cpu_s"],
        resource.RLIMIT_AS: limits["memory"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: limits["files"],
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
    }
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an OSError in the program instead
    for which, most in wanted.items():
        try:
            resource.setrlimit(which, (most, most))
        except (OSError, ValueError):
            continue  # macOS has no address space limit; a lower hard limit stays as it is


def _hook(home: str) -> Callable[[str, tuple[object, ...]], None]:
    """The audit hook (PEP 578)."""
    root = os.path.realpath(home) + os.sep
    refused, writes, writing = _REFUSED, _WRITES, os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    real, fspath, error = os.path.realpath, os.fspath, PermissionError

    def inside(path: object) -> bool:
        return isinstance(path, int) or (real(fspath(path)) + os.sep).startswith(root)  # type: ignore[call-overload]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(refused):
            raise error(f"{event} is refused here")
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & writing and not inside(path):
                raise error("writing outside the current folder is refused here")
        elif event.startswith(writes) and not all(inside(path) for path in arguments if isinstance(path, str | bytes)):
            raise error(f"{event} outside the current folder is refused here")

    return hook


if __name__ == "__main__":
    main()
