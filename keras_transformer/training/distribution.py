"""Where training runs: one device, several, or several machines."""

import keras
import tensorflow as tf

from keras_transformer.data.batches import Sharding


def default_strategy() -> tf.distribute.Strategy:
    """Returns `MultiWorkerMirroredStrategy` where `TF_CONFIG` names several
    workers, `MirroredStrategy` over several GPUs, or the one device there is.

    With several workers, call it before TensorFlow does anything else.

    Raises:
        ValueError: if `TF_CONFIG` has tasks that are no workers, or if Keras
            has another backend than TensorFlow.
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


def sharding_of(strategy, parts: int = 1) -> Sharding:
    """Returns how batches are divided for this worker of a strategy."""
    worker, workers = worker_of(strategy)
    replicas = strategy.num_replicas_in_sync // workers
    return Sharding(workers, worker, replicas, parts)


def worker_of(strategy) -> tuple[int, int]:
    """Returns the number of this worker, and how many there are."""
    cluster = strategy.cluster_resolver
    workers = (
        cluster.cluster_spec().as_dict().get("worker", ()) if cluster else ()
    )
    return (cluster.task_id, len(workers)) if len(workers) > 1 else (0, 1)
