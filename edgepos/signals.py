"""Leaving by an exception when a signal says so, so that temporary folders go.

Libraries swallow exceptions in places (mpmath has bare excepts): the exception comes again every second until it is heard, but not while
what it has set off is being cleaned up.
"""

from __future__ import annotations

import signal
import sys

ENDS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: lambda: SystemExit(143)}


def leave_on_signals() -> None:
    """Raise KeyboardInterrupt at an interrupt, unless the caller has set it to be ignored, and SystemExit(143) at SIGTERM."""
    for number, exception in ENDS.items():
        if number != signal.SIGINT or signal.getsignal(number) is signal.default_int_handler:
            signal.signal(number, _handler(exception))


def heard() -> None:
    """The exception was caught for good: it need not come again."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _handler(exception):
    def leave(*_) -> None:
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, leave)
            signal.setitimer(signal.ITIMER_REAL, 1)
        if not isinstance(sys.exc_info()[1], (KeyboardInterrupt, SystemExit)):
            raise exception()

    return leave
