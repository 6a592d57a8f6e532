"""Silences the start-up messages of native libraries in the command.

TensorFlow and SentencePiece write to file descriptor 2 as soon as they are
imported, regardless of Python's logging and `TF_CPP_MIN_LOG_LEVEL`. So this
module must be used before Keras is imported. Only the command uses it: a
library must not change its user's terminal.
"""

import contextlib
import faulthandler
import logging
import os
import sys
import warnings

DEBUG = "KERAS_TRANSFORMER_DEBUG"  # set this variable to see all messages


def silence() -> None:
    """Silences native libraries; Python's messages still reach the user."""
    if os.environ.get(DEBUG):
        return
    warnings.filterwarnings("ignore")
    warnings.filterwarnings("default", module="keras_transformer")
    warnings.formatwarning = lambda message, *_, **__: (
        f"keras-transformer: warning: {message}\n"
    )
    logging.getLogger("absl").setLevel(logging.ERROR)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        terminal = os.fdopen(
            os.dup(sys.stderr.fileno()),
            "w",
            buffering=1,
            encoding=sys.stderr.encoding,
            errors="backslashreplace",  # as Python's own
        )
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.stderr = terminal
        # Shows where native code crashed, since its own messages are silenced.
        faulthandler.enable(terminal)
