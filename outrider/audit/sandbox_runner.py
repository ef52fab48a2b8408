"""Limits itself, then runs the program on its standard input; started by ``sandbox``.

Imports nothing but the standard library: it runs without installed packages.
"""

import resource
import sys

MAX_FILE_BYTES = 2**20
MAX_OPEN_FILES = 32


def main() -> None:
    """Run the program; its errors are the exit code."""
    seconds, memory_bytes = (int(argument) for argument in sys.argv[1:3])
    for what, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    program = sys.stdin.buffer.read().decode("utf-8", "replace")
    # No child may be started from here on; root may, and these limits hold for its children too.
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
