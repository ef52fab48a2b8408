"""A service that opens no port and does not listen to SIGTERM; for the tests beside it."""

import signal
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(sys.argv[sys.argv.index("--port-file") + 1]).write_text("127.0.0.1:1")
    time.sleep(60)
