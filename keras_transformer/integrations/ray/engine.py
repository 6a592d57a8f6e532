"""Computes signatures in replicas of Ray Serve.

Each version of a model is an application of its own. The server makes the
batches; a replica loads the export and computes as the process of
`LocalEngine` does.
"""

import asyncio
import concurrent.futures
import json
import logging
import os
import pathlib
import re
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray import serve
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError
from ray.serve.exceptions import ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from keras_transformer.serve import worker
from keras_transformer.serve.errors import ServingError
from keras_transformer.serve.model_process import (
    ProcessEndedError,
    computing_environment,
)
from keras_transformer.serve.settings import RaySettings

DEPLOYMENT = "signatures"
# Ray reports errors of constructors as tracebacks. The text of an export that
# cannot be loaded follows this mark, as JSON.
LOADING_FAILED = "The export cannot be loaded: "
SECONDS_BETWEEN_LOOKS = 0.2  # at the state of an application that is starting
# Ray looks this often whether a replica has ended, and then starts another.
HEALTH_CHECK_SECONDS = 1.0
# The computation may be repeated: nothing of it was answered.
REPLICA_ENDED = (
    RayActorError,
    ReplicaUnavailableError,
    ObjectLostError,
    OutOfMemoryError,
)
logger = logging.getLogger("keras_transformer.serve")


class Replica:
    """Loads an export and computes batches side by side.

    Args:
        path: folder of the export, `NAME/VERSION`.
        threads: number of batches that are computed side by side.
    """

    def __init__(self, path: str, threads: int):
        try:
            self._signatures = worker.load(path)
        except Exception as error:
            raise ValueError(LOADING_FAILED + json.dumps(f"{error}")) from None
        self._threads = concurrent.futures.ThreadPoolExecutor(threads)

    async def compute(
        self, name: str, inputs: Mapping[str, np.ndarray]
    ) -> tuple[str, Any]:
        """Computes a signature, see `worker.answer`."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, worker.answer, self._signatures, name, inputs
        )


class RayEngine:
    """An `Engine` whose batches are computed by replicas of Ray Serve.

    Use `await RayEngine.start(...)`, while Ray runs.
    """

    def __init__(self, name: str, handle: DeploymentHandle, slots: int):
        self.slots = slots
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
        return cls(name, handle, threads * settings.most_replicas)

    async def compute(
        self, signature_name: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        try:
            kind, value = await self._handle.compute.remote(
                signature_name, inputs
            )
        except REPLICA_ENDED as error:
            raise ProcessEndedError from error
        if kind == "error":
            raise ServingError(*value)
        return value

    async def stop(self):
        await _delete(self._name)


def _application_name(path):
    """Returns a name that no other version and no other server has."""
    name = re.sub(r"[^\w.-]", "_", f"{path.parent.name}-{path.name}")
    return f"{name}-{uuid.uuid4().hex[:8]}"


def _deployment(path, threads, settings):
    """Returns the deployment of an export."""
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

    def delete():
        serve.delete(name, _blocking=False)
        serve.status()  # is answered after Ray has received the deletion

    await asyncio.to_thread(delete)
