"""The devices that train: one, several, or those of several machines."""

import keras
import tensorflow as tf

from keras_transformer.data.batches import Sharding


def default_strategy() -> tf.distribute.Strategy:
    """Returns a distribution strategy for the devices of this process.

    It is `MultiWorkerMirroredStrategy` if `TF_CONFIG` names several workers,
    `MirroredStrategy` if there are several GPUs, and TensorFlow's default
    strategy for one device otherwise. With several workers, call this function
    before TensorFlow does anything else.

    Raises:
        ValueError: if `TF_CONFIG` has tasks that are not workers, or if the
            backend of Keras is not TensorFlow.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ValueError(
            "Training needs Keras' TensorFlow backend. Received: "
            f"KERAS_BACKEND={backend}. Set KERAS_BACKEND=tensorflow."
        )
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    tasks = cluster.cluster_spec().as_dict()
    if tasks.keys() - {"worker"}:
        raise ValueError(
            "TF_CONFIG must have tasks of type worker only; the first of them "
            f"is the chief. Received: {sorted(tasks)}."
        )
    if len(tasks.get("worker", ())) > 1:
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) > 1:
        return tf.distribute.MirroredStrategy([gpu.name for gpu in gpus])
    return tf.distribute.get_strategy()


def sharding_of(strategy: tf.distribute.Strategy, parts: int = 1) -> Sharding:
    """Returns how a strategy divides batches, for this worker.

    Args:
        strategy: the distribution strategy.
        parts: number of parts of each replica. Defaults to 1.
    """
    worker, workers = worker_of(strategy)
    replicas = strategy.num_replicas_in_sync // workers
    return Sharding(workers, worker, replicas, parts)


def worker_of(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Returns the number of this worker and the number of workers."""
    cluster = strategy.cluster_resolver
    workers = (
        cluster.cluster_spec().as_dict().get("worker", ()) if cluster else ()
    )
    return (cluster.task_id, len(workers)) if len(workers) > 1 else (0, 1)
