"""The signals that ask a process to stop."""

import signal

# A terminal that is closed sends SIGHUP, which Windows does not have.
_NAMES = "SIGTERM", "SIGINT", "SIGHUP"


def stop_signals() -> list[signal.Signals]:
    """Returns the signals that ask this process to stop.

    Those that it ignores are left out: `nohup` has SIGHUP ignored, and a shell
    the SIGINT of what runs in the background.
    """
    known = [getattr(signal, x) for x in _NAMES if hasattr(signal, x)]
    return [x for x in known if signal.getsignal(x) is not signal.SIG_IGN]
