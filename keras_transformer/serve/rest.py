import dataclasses, json
import numpy as np
from keras_transformer.serve.errors import ServingError
from keras_transformer.serve.rest_json import write_error


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    headers: list
    body: bytes


async def answer(method, path, body, models, timeout):
    try:
        name = path.split("/")[3].partition(":")[0]
        served = models.find(name)
        r = json.loads(body)
        inputs = {
            k: np.array([s.encode() for s in v], object)
            if isinstance(v, list)
            else np.array(v, np.float32 if k == "alpha" else np.int32)
            for k, v in r["inputs"].items()
        }
        out = await served.predict(
            r.get("signature_name", "serving_default"), inputs, timeout
        )
        o = {
            k: (
                np.vectorize(bytes.decode, otypes=[object])(v)
                if v.dtype == object
                else v
            ).tolist()
            for k, v in out.items()
        }
        return Answer(
            200,
            [("Content-Type", "application/json")],
            json.dumps({"outputs": o}).encode(),
        )
    except ServingError as e:
        h = [("Retry-After", str(e.retry_after))] if e.retry_after else []
        return Answer(e.http_status, h, write_error(f"{e}"))
