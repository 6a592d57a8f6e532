"""`python -m keras_transformer` is the command `keras-transformer`."""

import sys

from keras_transformer.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
