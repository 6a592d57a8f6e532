"""Ray Serve: computes the signatures of exports in replicas.

Each version of a model is an application of its own. The server makes the
batches; a replica loads the export and computes as the process of
`LocalEngine` does.

Ray, an extra of its own, is imported when `serve --engine ray` runs.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import logging
import os
import pathlib
import re
import secrets
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from keras_transformer.serve.errors import ProcessEndedError, ServingError
from keras_transformer.validation import check_at_least, option_field

# Batches pass through it. Ray would take a third of the memory.
OBJECT_STORE_BYTES = 200_000_000
DEPLOYMENT = "signatures"
# Ray reports errors of constructors as tracebacks. The text of an export that
# cannot be loaded follows this mark, as JSON.
LOADING_FAILED = "The export cannot be loaded: "
SECONDS_BETWEEN_LOOKS = 0.2  # at the state of an application that is starting
# Ray looks this often whether a replica has ended, and then starts another.
HEALTH_CHECK_SECONDS = 1.0
logger = logging.getLogger("keras_transformer.serve")


@dataclasses.dataclass(frozen=True)
class RaySettings:
    """Describes the replicas of Ray Serve that compute for the server.

    Example:

    >>> RaySettings(ray_replicas=2).most_replicas
    2

    Args:
        ray_address: address of the Ray cluster to join, such as "auto", the one
            that this machine belongs to. Defaults to `None`: Ray is started on
            this machine, and ends with the server.
        ray_replicas: number of replicas of each version. Defaults to 1.
        ray_max_replicas: number of replicas to which Ray may increase
            `ray_replicas` under load. Defaults to `None`, no more.
        ray_cpus: number of CPUs of a replica. Defaults to 1.

    Raises:
        ValueError: if a value is out of range.
    """

    ray_address: str | None = option_field(
        None,
        "Ray cluster to join, such as auto (default: Ray is started here)",
        metavar="ADDRESS",
    )
    ray_replicas: int = option_field(1, "number of replicas of each version")
    ray_max_replicas: int | None = option_field(
        None, "number of replicas under load (default: no more)"
    )
    ray_cpus: int = option_field(1, "number of CPUs of a replica")

    def __post_init__(self) -> None:
        check_at_least(
            self,
            ray_replicas=1,
            ray_max_replicas=self.ray_replicas,
            ray_cpus=1,
        )

    @property
    def most_replicas(self) -> int:
        """Returns the number of replicas under the highest load."""
        return self.ray_max_replicas or self.ray_replicas


@contextlib.contextmanager
def running_ray(settings: RaySettings) -> Iterator[functools.partial]:
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


class RayEngine:
    """An `Engine` whose batches are computed by replicas of Ray Serve.

    Use `await RayEngine.start(...)`, while Ray runs.
    """

    def __init__(
        self,
        name: str,
        handle: Any,
        slots: int,
        signatures: Mapping[str, Any],
    ):
        self.slots = slots
        self.signatures = signatures
        self.is_running = True  # Ray starts replicas again
        self._name = name
        self._handle = handle

    @classmethod
    async def start(
        cls,
        path: str | os.PathLike,
        threads: int | None = None,
        settings: RaySettings | None = None,
    ) -> "RayEngine":
        """Starts replicas and waits until enough of them are ready.

        Args:
            path: folder of the export, `NAME/VERSION`.
            threads: number of batches that a replica computes side by side.
                Defaults to `None`, the number of its CPUs.
            settings: numbers of replicas and CPUs. Defaults to
                `RaySettings()`.

        Raises:
            ValueError: if the export cannot be loaded.
            ProcessEndedError: if replicas end before they are ready.
        """
        from ray import serve

        from keras_transformer.serve.signatures import read_signatures

        settings = settings or RaySettings()
        threads = threads or settings.ray_cpus
        path = pathlib.Path(os.path.abspath(path))
        name = _application_name(path)
        target = serve.RunTarget(
            _deployment(path, threads, settings).bind(str(path), threads),
            name=name,
            route_prefix=None,
        )
        deploying = asyncio.create_task(
            asyncio.to_thread(
                serve.run_many, [target], wait_for_applications_running=False
            )
        )
        try:
            (handle,) = await asyncio.shield(deploying)
            await _until_running(name)
        except BaseException:
            await asyncio.wait({deploying})
            await _delete(name)
            raise
        # Batches beyond the replicas of the moment wait in Ray, which takes
        # their number as a reason to add replicas.
        slots = threads * settings.most_replicas
        return cls(name, handle, slots, read_signatures(path))

    async def compute(
        self, signature_name: str, inputs: Mapping[str, Any]
    ) -> dict[str, Any]:
        try:
            kind, value = await self._handle.compute.remote(
                signature_name, inputs
            )
        except _replica_ended() as error:
            raise ProcessEndedError from error
        if kind == "error":
            raise ServingError(*value)
        return value

    async def stop(self):
        await _delete(self._name)


class Replica:
    """Loads an export and computes batches side by side.

    Args:
        path: folder of the export, `NAME/VERSION`.
        threads: number of batches that are computed side by side.
    """

    def __init__(self, path: str, threads: int):
        from keras_transformer.serve import worker

        try:
            self._functions = worker.load(path, threads)
        except Exception as error:
            raise ValueError(LOADING_FAILED + json.dumps(f"{error}")) from None
        self._answer = worker.answer
        self._threads = concurrent.futures.ThreadPoolExecutor(threads)

    async def compute(
        self, name: str, inputs: Mapping[str, Any]
    ) -> tuple[str, Any]:
        """Computes a signature, see `worker.answer`."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._answer, self._functions, name, inputs
        )


def _application_name(path):
    """Returns a name that no other version and no other server has."""
    name = re.sub(r"[^\w.-]", "_", f"{path.parent.name}-{path.name}")
    return f"{name}-{uuid.uuid4().hex[:8]}"


def _deployment(path, threads, settings):
    """Returns the deployment of an export."""
    from ray import serve

    from keras_transformer.serve.model_process import computing_environment

    variables = computing_environment(path, settings.ray_cpus, threads)
    variables |= {
        name: os.environ[name] for name in variables if name in os.environ
    }
    numbers: dict[str, Any] = {"num_replicas": settings.ray_replicas}
    if settings.most_replicas > settings.ray_replicas:
        numbers = {
            "autoscaling_config": {
                "min_replicas": settings.ray_replicas,
                "max_replicas": settings.most_replicas,
                "target_ongoing_requests": threads,
            }
        }
    return serve.deployment(
        Replica,
        name=DEPLOYMENT,
        max_ongoing_requests=threads,
        health_check_period_s=HEALTH_CHECK_SECONDS,
        ray_actor_options={
            # Where Ray runs for this server alone, the operating system
            # shares the cores, also while one version replaces another.
            "num_cpus": settings.ray_cpus if settings.ray_address else 0,
            "runtime_env": {"env_vars": variables},
        },
        logging_config={"log_level": "WARNING", "enable_access_log": False},
        **numbers,
    )


async def _until_running(name):
    """Waits until an application runs.

    Raises:
        ValueError: if the export cannot be loaded.
        ProcessEndedError: if Ray gives up starting replicas.
    """
    from ray import serve

    shown = ""
    while True:
        status = await asyncio.to_thread(serve.status)
        application = status.applications[name]
        if application.status == "RUNNING":
            return
        deployment = application.deployments.get(DEPLOYMENT)
        message = deployment.message if deployment else ""
        if LOADING_FAILED in message:
            text = message.rpartition(LOADING_FAILED)[2]
            raise ValueError(json.JSONDecoder().raw_decode(text)[0])
        if application.status == "DEPLOY_FAILED":
            raise ProcessEndedError(application.message)
        if message != shown:
            logger.info("%s: %s", name, " ".join(message.split()))
            shown = message
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)


async def _delete(name):
    """Has Ray end an application and its replicas."""
    from ray import serve

    def delete():
        serve.delete(name, _blocking=False)
        serve.status()  # is answered after Ray has received the deletion

    await asyncio.to_thread(delete)


def _replica_ended():
    """Returns the errors after which a computation may be repeated: nothing of
    it was answered."""
    from ray import exceptions
    from ray.serve.exceptions import ReplicaUnavailableError

    return (
        exceptions.RayActorError,
        ReplicaUnavailableError,
        exceptions.ObjectLostError,
        exceptions.OutOfMemoryError,
    )
