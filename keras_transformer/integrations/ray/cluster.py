"""Starts Ray for the server, or joins a cluster of Ray.

Ray is imported when it is needed: it is an extra of its own.
"""

import contextlib
import functools
import logging
import os
import secrets
from collections.abc import Iterator

from keras_transformer.serve.server import StartEngine
from keras_transformer.serve.settings import RaySettings

# Batches pass through it. Ray would take a third of the memory.
OBJECT_STORE_BYTES = 200_000_000


@contextlib.contextmanager
def running_ray(settings: RaySettings) -> Iterator[StartEngine]:
    """Starts Ray on this machine or joins a cluster, until the block ends.

    Args:
        settings: the address of the cluster, and the replicas of a version.

    Returns:
        A context manager of `RayEngine.start`, for `serve`.

    Raises:
        ImportError: if Ray is not installed.
        ConnectionError: if the cluster cannot be joined.
    """
    _prepare_environment(settings)
    try:
        import ray
        from ray import serve

        from keras_transformer.integrations.ray.engine import RayEngine
    except ImportError as error:
        raise ImportError(
            f"`--engine ray` needs Ray Serve: {error}", name="ray"
        ) from error

    if settings.ray_address is None:
        arguments = {
            "address": "local",
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    else:
        arguments = {"address": settings.ray_address}
    ray.init(log_to_driver=False, logging_level=logging.WARNING, **arguments)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        serve.start(proxy_location="Disabled")
        yield functools.partial(RayEngine.start, settings=settings)
    finally:
        ray.shutdown()


def _prepare_environment(settings):
    """Sets the variables that Ray reads when it is imported and started."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if settings.ray_address is None:
        # Only processes that know the token may use this Ray. Otherwise Ray
        # writes a token to the home folder, which may not be writable.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # Ray listens at 127.0.0.1 then.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
