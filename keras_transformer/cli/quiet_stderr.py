"""Keeps the start-up messages of native libraries off the command's terminal.

TensorFlow and SentencePiece write to file descriptor 2 whatever Python's
logging and `TF_CPP_MIN_LOG_LEVEL` say, from the moment they are imported. This
module is therefore used before Keras is imported, and only by the command: a
library must leave its user's terminal alone.
"""

import contextlib
import faulthandler
import logging
import os
import sys
import warnings

DEBUG = "KERAS_TRANSFORMER_DEBUG"  # set it to see everything


def is_command(package: str) -> bool:
    """Whether this process is `keras-transformer` or `python -m` of it."""
    script = os.path.basename(sys.argv[0]) if sys.argv else ""
    return script.removesuffix(".exe") == "keras-transformer" or (
        sys.orig_argv[1:3] == ["-m", package]
    )


def silence():
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
        terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.stderr = terminal
        # Where native code died, since its own last words are not heard.
        faulthandler.enable(terminal)
