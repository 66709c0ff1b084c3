#!/usr/bin/env python3
"""stop.py SIGNAL[=WORD] COMMAND...: sends a signal to a command at work; it must end within the limit, or say WORD on stderr.

Exit code 0 where it does, 99 where it does not, 98 where it ended before it was at work (two seconds of CPU time).

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import os
import pathlib
import signal
import subprocess
import sys
import time

LIMIT = 4.0  # seconds; two are promised, on a machine with nothing else to do
AT_WORK = 2.0  # seconds of CPU time: the model is read, the work has begun


def cpu_seconds(process: int) -> float:
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    name, _, word = sys.argv[1].partition("=")
    errors = pathlib.Path("stop.stderr")
    with errors.open("wb") as err:
        child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err,
                                 preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    while child.poll() is None and cpu_seconds(child.pid) < AT_WORK:
        time.sleep(0.05)
    if child.poll() is not None:
        sys.stderr.write(f"it ended by itself with {child.returncode}\n" + errors.read_text(errors="replace"))
        return 98
    child.send_signal(getattr(signal, "SIG" + name))
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        said = word and word in errors.read_text(errors="replace")
        if said or child.poll() is not None:
            break
        time.sleep(0.02)
    ended = child.poll()
    child.kill()
    child.wait()
    sys.stderr.write(errors.read_text(errors="replace")[-2000:])
    if ended is None and not said:
        sys.stderr.write(f"no answer to SIG{name} within {LIMIT} s\n")
        return 99
    return 0


if __name__ == "__main__":
    sys.exit(main())
