"""Starts a command and writes down the most memory that it ever had. Run as a program: `peak.py FILE COMMAND …`.

The kernel hands a process the high-water mark of its parent, so that has to be small: this one has 10 MiB.
Standard library only, as it starts in a bare interpreter.
"""

import os
import sys


def main(file: str, argv: list[str]) -> int:
    """The command's exit status; its peak goes to `file`, in MiB."""
    child = os.fork()
    if child == 0:
        os.execvp(argv[0], argv)  # noqa: S606  # without a shell is what is wanted
    _, status, usage = os.wait4(child, 0)
    with open(file, "w", encoding="ascii") as out:  # noqa: PTH123  # pathlib is a MiB that this one has not
        out.write(str(usage.ru_maxrss / 1024))
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
