"""Makes a process that ends with its parent; run as a script, never imported.

Arguments: the parent's process id, then those of Python, such as ``-m verifier_svc``.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>; stays in force across exec

if __name__ == "__main__":
    parent, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        raise SystemExit("the parent has ended")
    os.execv(sys.executable, [sys.executable, *arguments])
