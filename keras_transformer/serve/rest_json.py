import json


def write_error(m):
    return json.dumps({"error": m}).encode()
