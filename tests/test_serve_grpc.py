"""Tests of the gRPC services, with models in memory."""

import asyncio
import inspect
import json

import grpc
import pytest
import tensorflow as tf
from serve_fakes import DEMO, FakeModel, FakeRegistry
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

from keras_transformer.serve.errors import ServingError
from keras_transformer.serve.grpc_services import (
    ModelService,
    PredictionService,
    Watcher,
    _array,
)
from keras_transformer.serve.metrics import Metrics
from keras_transformer.serve.settings import ServeSettings

WRONG = "INVALID_ARGUMENT"


def with_server(use, models, metrics=None, settings=None):
    """Runs the coroutine function `use` with stubs of both services, and with
    the channel if it takes three arguments."""
    settings = settings or ServeSettings(access_log=False)
    takes_channel = len(inspect.signature(use).parameters) == 3

    async def run():
        watcher = Watcher(settings, metrics or Metrics(), None)
        server = grpc.aio.server(interceptors=[watcher])
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            PredictionService(models, settings), server
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(
            ModelService(models), server
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await use(
                prediction_service_pb2_grpc.PredictionServiceStub(channel),
                model_service_pb2_grpc.ModelServiceStub(channel),
                *([channel] if takes_channel else []),
            )
        await server.stop(None)

    asyncio.run(run())


async def error_of(call):
    """Returns code and details of a call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details()


def predict_request(**inputs):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "demo"
    for name, proto in inputs.items():
        request.inputs[name].CopyFrom(proto)
    return request


def test_a_request_must_name_its_model():
    async def use(prediction, model):
        metadata = get_model_metadata_pb2.GetModelMetadataRequest()
        status = get_model_status_pb2.GetModelStatusRequest()
        predict = predict_pb2.PredictRequest()
        calls = [
            (prediction.Predict, predict),
            (prediction.GetModelMetadata, metadata),
            (model.GetModelStatus, status),
        ]
        for call, request in calls:
            code, details = await error_of(call(request))
            assert (code, "`model_spec`" in details) == (WRONG, True)
            request.model_spec.SetInParent()
        metadata.metadata_field.append("signature_def")
        for call, request in calls[:-1]:
            code, details = await error_of(call(request))
            assert (code, "must have a name" in details) == (WRONG, True)
        code, _ = await error_of(model.GetModelStatus(status))
        assert code == "NOT_FOUND"

    with_server(use, FakeRegistry())


def messages_of(caplog):
    """Returns what was logged, but for gRPC's poller: it may wake once more in
    the closed event loop of an earlier test."""
    messages = [record.getMessage() for record in caplog.records]
    return [text for text in messages if "PollerCompletionQueue" not in text]


def test_calls_that_are_not_implemented_leave_no_traceback(caplog):
    async def use(prediction, model):
        inference = inference_pb2.MultiInferenceRequest()
        classification = classification_pb2.ClassificationRequest()
        reload = model_management_pb2.ReloadConfigRequest()
        for call in (
            prediction.Classify(classification),
            prediction.Regress(regression_pb2.RegressionRequest()),
            prediction.MultiInference(inference),
            model.HandleReloadConfigRequest(reload),
        ):
            code, details = await error_of(call)
            assert code == "UNIMPLEMENTED"
            assert "is not implemented" in details

    with_server(use, FakeRegistry())
    assert messages_of(caplog) == []


def test_tensors_of_other_dtypes_are_not_read(caplog):
    """Their values may be out of range, or of no dtype of NumPy."""
    wrong = {
        "int8": tensor_pb2.TensorProto(
            dtype=types_pb2.DT_INT8, int_val=[300], tensor_shape={}
        ),
        "float16": tensor_pb2.TensorProto(
            dtype=types_pb2.DT_HALF, half_val=[70000]
        ),
        "resource": tensor_pb2.TensorProto(dtype=types_pb2.DT_RESOURCE),
        "variant": tensor_pb2.TensorProto(dtype=types_pb2.DT_VARIANT),
    }

    async def use(prediction, model):
        right = predict_request(text=tf.make_tensor_proto(["a"]))
        response = await prediction.Predict(right)
        assert response.outputs["translation"].string_val == [b"A"]
        for name, proto in wrong.items():
            call = prediction.Predict(predict_request(text=proto))
            assert await error_of(call) == (
                WRONG,
                f"Input text must be of dtype string. Received: {name}.",
            )

    with_server(use, FakeRegistry())
    assert messages_of(caplog) == []


def test_calls_are_counted_by_the_code_that_they_end_with():
    metrics = Metrics()

    class Trouble(FakeRegistry):
        def statuses(self, name, version=None, label=None):
            if name == "crash":
                raise RuntimeError
            return super().statuses(name, version, label)

    class Slow(FakeModel):
        async def predict(self, signature_name, inputs, timeout=None):
            await asyncio.sleep(60)

    def count(code):
        labels = {"protocol": "grpc", "status": code}
        return metrics.registry.get_sample_value(
            "keras_transformer_requests_total", labels
        )

    async def use(prediction, model):
        for name in ("demo", "other", "crash"):
            request = get_model_status_pb2.GetModelStatusRequest()
            request.model_spec.name = name
            call = model.GetModelStatus(request)
            if name == "demo":
                await call
            else:
                await error_of(call)
        models.versions["demo", 1] = Slow("demo", 1, DEMO, None)
        request = predict_request(text=tf.make_tensor_proto(["a"]))
        call = prediction.Predict(request)
        await asyncio.sleep(0.2)
        call.cancel()
        await asyncio.sleep(0.2)

    models = Trouble()
    with_server(use, models, metrics)
    codes = "OK", "NOT_FOUND", "UNKNOWN", "CANCELLED"
    assert [count(code) for code in codes] == [1, 1, 1, 1]


def test_tensors_are_read_as_tensorflow_reads_them(caplog):
    """Strings in `tensor_content`, and another number of values than named."""
    text = "DT_STRING"
    longest = b"x" * 20_000
    read = [
        (text, [2], {"tensor_content": b"\x01\x02abc"}, [b"a", b"bc"]),
        (text, [2], {"tensor_content": b"\0\0"}, [b"", b""]),
        (text, [1], {"tensor_content": b"\xa0\x9c\x01" + longest}, [longest]),
        (text, [2], {"string_val": [b"a", b"b", b"c"]}, [b"a", b"b"]),
        (text, [3], {"string_val": [b"a", b"b"]}, [b"a", b"b", b"b"]),
        (text, [2], {}, [b"", b""]),
        (text, [0], {"string_val": [b"a"]}, []),
        ("DT_INT32", [2], {"int_val": [1, 2, 3]}, [1, 2]),
        ("DT_INT32", [2], {"tensor_content": b"\1\0\0\0\2\0\0\0"}, [1, 2]),
        ("DT_FLOAT", [3], {"float_val": [0.5, 1.5]}, [0.5, 1.5, 1.5]),
    ]
    for name, sizes, values, expected in read:
        proto = tensor_pb2.TensorProto(dtype=getattr(types_pb2, name), **values)
        for size in sizes:
            proto.tensor_shape.dim.add(size=size)
        dtype = tf.as_dtype(proto.dtype)
        theirs = tf.io.parse_tensor(proto.SerializeToString(), dtype)
        assert _array(proto, 100).tolist() == theirs.numpy().tolist()
        assert theirs.numpy().tolist() == expected
    caplog.clear()


@pytest.mark.parametrize(
    "content",
    [b"\x01\x02abcd", b"\x01\x02ab", b"\x01", b"\x81", b"\xff" * 1_000_000],
)
def test_strings_that_do_not_fill_their_content_are_refused(content):
    proto = tensor_pb2.TensorProto(
        dtype=types_pb2.DT_STRING, tensor_content=content
    )
    proto.tensor_shape.dim.add(size=2)
    with pytest.raises(ServingError, match="must hold the length of each"):
        _array(proto, 100)


def test_a_message_that_cannot_be_read_leaves_no_traceback(caplog, capsys):
    method = "/tensorflow.serving.PredictionService/Predict"
    settings = ServeSettings()

    async def use(prediction, model, channel):
        call = channel.unary_unary(method)
        code, details = await error_of(call(b"\xff" * 9000))
        assert (code, "cannot be read" in details) == (WRONG, True)
        assert len(details) <= 200

    with_server(use, FakeRegistry(), settings=settings)
    assert messages_of(caplog) == []
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["status"] == WRONG
