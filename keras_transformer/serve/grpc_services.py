"""TensorFlow Serving's gRPC services, over a `ModelRegistry`."""

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import Callable
from typing import TypeAlias

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from keras_transformer.serve.access import Tokens
from keras_transformer.serve.errors import (
    MOST_QUOTED,
    ServingError,
    invalid,
    quoted,
    too_large,
)
from keras_transformer.serve.http_app import log_access
from keras_transformer.serve.metrics import Metrics
from keras_transformer.serve.model_registry import (
    ModelRegistry,
    status_response,
)
from keras_transformer.serve.settings import ServeSettings
from keras_transformer.serve.signatures import (
    DEFAULT,
    check_dtypes,
    check_names,
    check_shapes,
    choose_outputs,
    find_signature,
    signature_map,
)

Context: TypeAlias = "grpc.aio.ServicerContext"


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Answers requests about the signatures of models."""

    def __init__(self, models: ModelRegistry, settings: ServeSettings):
        self._models = models
        self._settings = settings

    async def Predict(  # noqa: N802
        self, request: predict_pb2.PredictRequest, context: Context
    ) -> predict_pb2.PredictResponse:
        async with _answering_errors(context):
            wanted = _wanted(request)
            served = _find(self._models, wanted)
            name = request.model_spec.signature_name or DEFAULT
            signature = find_signature(served.signatures, name)
            check_names(signature, set(request.inputs))
            dtypes = {key: x.dtype for key, x in request.inputs.items()}
            check_dtypes(signature, dtypes)  # before what they say is read
            most = self._settings.max_request_rows
            inputs = {
                key: _array(value, most)
                for key, value in request.inputs.items()
            }
            check_shapes(signature, inputs)
            names = choose_outputs(signature, request.output_filter)
            outputs = await self._models.predict(
                served, wanted, name, inputs, context.time_remaining()
            )
            response = predict_pb2.PredictResponse()
            _fill_spec(response.model_spec, served, name)
            for key in names:
                response.outputs[key].CopyFrom(tensor_proto(outputs[key]))
            return response

    async def Classify(  # noqa: N802
        self,
        request: classification_pb2.ClassificationRequest,
        context: Context,
    ):
        await _abort_unknown("Classify", context)

    async def Regress(  # noqa: N802
        self, request: regression_pb2.RegressionRequest, context: Context
    ):
        await _abort_unknown("Regress", context)

    async def MultiInference(  # noqa: N802
        self, request: inference_pb2.MultiInferenceRequest, context: Context
    ):
        await _abort_unknown("MultiInference", context)

    async def GetModelMetadata(  # noqa: N802
        self,
        request: get_model_metadata_pb2.GetModelMetadataRequest,
        context: Context,
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        async with _answering_errors(context):
            wanted = _wanted(request)
            if not request.metadata_field:
                raise invalid("A request must have a `metadata_field`.")
            for field in request.metadata_field:
                if field != "signature_def":
                    raise invalid(
                        "A `metadata_field` must be signature_def. Received: "
                        f"{quoted(field)}."
                    )
            served = _find(self._models, wanted)
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            _fill_spec(response.model_spec, served)
            response.metadata["signature_def"].Pack(
                signature_map(served.signatures)
            )
            return response


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """`GetModelStatus`."""

    def __init__(self, models: ModelRegistry):
        self._models = models

    async def GetModelStatus(  # noqa: N802
        self,
        request: get_model_status_pb2.GetModelStatusRequest,
        context: Context,
    ) -> get_model_status_pb2.GetModelStatusResponse:
        async with _answering_errors(context):
            wanted = _wanted(request)
            return status_response(self._models.statuses(*wanted))

    async def HandleReloadConfigRequest(  # noqa: N802
        self,
        request: model_management_pb2.ReloadConfigRequest,
        context: Context,
    ):
        await _abort_unknown("HandleReloadConfigRequest", context)


class Watcher(grpc.aio.ServerInterceptor):
    """Checks the token, and counts and logs every call."""

    def __init__(
        self,
        settings: ServeSettings,
        metrics: Metrics,
        tokens: Tokens | None,
    ):
        self._settings = settings
        self._metrics = metrics
        self._tokens = tokens

    async def intercept_service(
        self, continuation: Callable, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(details)
        if handler is None or handler.unary_unary is None:
            return handler

        async def answer(request, context):
            start = time.monotonic()
            code = "OK"
            try:
                await self._check_token(context)
                if isinstance(request, DecodeError):
                    await _abort_malformed(request, context)
                return await handler.unary_unary(request, context)
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except BaseException:
                code = getattr(context.code(), "name", "UNKNOWN")
                raise
            finally:
                self._note(details.method, request, context, code, start)

        def read(data):
            try:
                return handler.request_deserializer(data)
            except DecodeError as error:  # gRPC would log a traceback
                return error

        return grpc.unary_unary_rpc_method_handler(
            answer, read, handler.response_serializer
        )

    async def _check_token(self, context):
        if self._tokens is None:
            return
        metadata = dict(context.invocation_metadata() or ())
        if not self._tokens.allow(metadata.get("authorization", "")):
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "A bearer token is needed in the metadata `authorization`.",
            )

    def _note(self, method, request, context, code, start):
        seconds = time.monotonic() - start
        self._metrics.requests.labels("grpc", code).inc()
        self._metrics.latency.labels("grpc").observe(seconds)
        if self._settings.access_log:
            log_access(
                "grpc",
                context.peer(),
                method,
                code,
                getattr(request, "ByteSize", int)(),
                seconds,
            )


@contextlib.asynccontextmanager
async def _answering_errors(context):
    """Answers with the code and the message of a `ServingError`."""
    try:
        yield
    except ServingError as error:
        if error.retry_after is not None:
            context.set_trailing_metadata(
                (("retry-after", str(error.retry_after)),)
            )
        await context.abort(getattr(grpc.StatusCode, error.code), f"{error}")
    except (TypeError, ValueError) as error:
        text = f"{error}"[:MOST_QUOTED]
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)


async def _abort_malformed(error, context):
    code = grpc.StatusCode.INVALID_ARGUMENT
    await context.abort(code, f"The message cannot be read: {error}"[:200])


async def _abort_unknown(method, context):
    """Answers a call that this server does not know."""
    code = grpc.StatusCode.UNIMPLEMENTED
    await context.abort(code, f"{method} is not implemented.")


def _find(models, wanted):
    """Returns the version that a request wants."""
    if not wanted[0]:
        raise invalid("The `model_spec` of a request must have a name.")
    return models.find(*wanted)


def _wanted(request):
    """Returns name, version and label of a request's `ModelSpec`."""
    if not request.HasField("model_spec"):
        raise invalid("A request must have a `model_spec`.")
    spec = request.model_spec
    kind = spec.WhichOneof("version_choice")
    return (
        spec.name,
        spec.version.value if kind == "version" else None,
        spec.version_label if kind == "version_label" else None,
    )


def _fill_spec(spec, served, signature_name=""):
    spec.name = served.name
    spec.version.value = served.number
    spec.signature_name = signature_name


def _array(proto, most_rows):
    """Returns the array of a `TensorProto`; strings as `bytes` objects.

    A few bytes may describe an array that fills the memory. No signature has
    inputs of more than one axis.
    """
    sizes = [dim.size for dim in proto.tensor_shape.dim]
    size = math.prod(sizes)
    if size > most_rows:
        raise too_large("rows", size, most_rows)
    if min(sizes, default=0) < 0:
        raise ValueError(f"An axis has no length. Received: shape {sizes}.")
    if proto.dtype == types_pb2.DT_STRING:
        return _strings(proto, size).reshape(sizes)
    for field, values in proto.ListFields():
        if field.name.endswith("_val"):
            del values[size:]  # as TensorFlow does with what is over
    return np.asarray(tf.make_ndarray(proto))


def _strings(proto, size):
    """Returns the strings of a `TensorProto`, as TensorFlow reads them.

    What is over is ignored, and what is missing is the last one once more.
    """
    values = list(proto.string_val[:size])
    if proto.tensor_content:
        values = _split(proto.tensor_content, size)
    array = np.empty(size, object)
    array[: len(values)] = values
    array[len(values) :] = values[-1] if values else b""
    return array


def _split(content, size):
    """Returns strings whose lengths, as varints, stand before their bytes."""
    error = invalid(
        "The `tensor_content` of a tensor must hold the length of each string "
        f"and then their bytes. Received: {len(content):,} bytes for {size:,} "
        "strings."
    )
    lengths = []
    start = 0
    for _ in range(size):
        part = content[start : start + 5]  # seven bits of a length in each
        used = next((i for i, x in enumerate(part, 1) if x < 128), 0)
        if not used:  # cut short, or too long
            raise error
        bits = [(x & 127) << 7 * i for i, x in enumerate(part[:used])]
        lengths.append(sum(bits))
        start += used
    if start + sum(lengths) != len(content):
        raise error
    ends = list(itertools.accumulate(lengths, initial=start))
    return [content[i:j] for i, j in itertools.pairwise(ends)]


def tensor_proto(array: np.ndarray) -> tensor_pb2.TensorProto:
    """Returns a `TensorProto` with its values in typed fields.

    TensorFlow Serving writes it so, and its documentation reads it so.
    """
    dtype = tf.as_dtype(tf.string if array.dtype == object else array.dtype)
    proto = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum)
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    proto.tensor_shape.SetInParent()
    field = {
        "string": proto.string_val,
        "float32": proto.float_val,
        "float64": proto.double_val,
        "int64": proto.int64_val,
        "bool": proto.bool_val,
    }.get(dtype.name, proto.int_val)
    field.extend(array.ravel().tolist())
    return proto
