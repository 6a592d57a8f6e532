"""Settings of the server.

It imports neither Keras nor TensorFlow, so the command shows its help fast.
"""

import dataclasses
import ipaddress
import math

from keras_transformer.validation import (
    check_at_least,
    check_field,
    option_field,
    shown,
)


@dataclasses.dataclass(frozen=True)
class ServeSettings:
    """Describes how models are served.

    Example:

    >>> ServeSettings(port=9000).host
    '127.0.0.1'

    Args:
        host: address to listen at. Defaults to "127.0.0.1", this machine only.
        port: port of HTTP; 0 chooses a free one. Defaults to 8501.
        grpc_port: port of gRPC; 0 chooses a free one. Defaults to 8500.
        beam_size, alpha: those of the search of requests that give none.
            Default to `None`, those of the export.
        threads: number of batches to compute side by side for each version.
            Defaults to `None`, the number of cores.
        max_batch_rows: maximum number of texts of a batch. Defaults to 64.
        by_length: whether texts of similar length make a batch, and short ones
            go first. Defaults to True.
        max_queue_rows: number of texts that may wait for each version; further
            requests are refused. Defaults to 2048.
        max_request_rows: maximum number of texts of a request. Defaults to
            10,000.
        max_request_text: maximum length of the texts of a request, in bytes.
            Defaults to 4,000,000.
        max_answer_elements: maximum number of elements of an answer. The
            attention of `explain` has layers × heads × pieces of the text ×
            pieces of the translation and of the text. Defaults to 30,000,000.
        max_body: maximum length of the body of a request, in bytes. Defaults
            to 16,000,000.
        max_connections: maximum number of connections by HTTP, and by gRPC.
            Defaults to 1,000.
        timeout: seconds after which a request by REST fails. Defaults to 30.
        poll_seconds: seconds between two looks for new versions. Defaults to 1.
        cors: whether pages of other sites may call the REST API. Defaults to
            False.
        tls_certificate, tls_key: files in PEM, for HTTPS and secure gRPC.
            Default to `None`.
        token_file: file with tokens, one in each line, of which clients must
            send one. It is read again when it changes. Defaults to `None`.
        insecure: whether clients of other machines need no token. Defaults to
            False.
        access_log: whether each request is logged to standard output, as a
            line of JSON. Defaults to True.

    Raises:
        ValueError: if a value is out of range, or if other machines could
            connect and there is neither a token file nor `insecure`.
    """

    host: str = option_field(
        "127.0.0.1", "address to listen at; 0.0.0.0 for all networks"
    )
    port: int = option_field(8501, "port of HTTP; 0 chooses a free one")
    grpc_port: int = option_field(8500, "port of gRPC; 0 chooses a free one")
    beam_size: int | None = option_field(
        None,
        "hypotheses that the search of a plain request keeps (default: as "
        "exported)",
    )
    alpha: float | None = option_field(
        None,
        "exponent of the length penalty of a plain request (default: as "
        "exported)",
    )
    threads: int | None = option_field(
        None,
        "batches to compute side by side (default: number of cores; with Ray, "
        "--ray-cpus)",
    )
    max_batch_rows: int = option_field(64, "maximum number of texts of a batch")
    by_length: bool = option_field(
        True,
        "make batches of texts as they arrive, not of similar length",
        option="no-batching-by-length",
    )
    max_queue_rows: int = option_field(
        2048,
        "number of texts that may wait; a request that would exceed it is "
        "refused with 429, unless nothing waits",
    )
    max_request_rows: int = option_field(
        10_000, "maximum number of texts of a request"
    )
    max_request_text: int = option_field(
        4_000_000, "maximum length of the texts of a request, in bytes"
    )
    max_answer_elements: int = option_field(
        30_000_000,
        "maximum number of elements of an answer; each takes some twenty bytes",
    )
    max_body: int = option_field(
        16_000_000, "maximum length of a request's body, in bytes"
    )
    max_connections: int = option_field(
        1000, "maximum number of connections by HTTP, and by gRPC"
    )
    timeout: float = option_field(
        30.0, "seconds after which a request by REST fails", metavar="SECONDS"
    )
    poll_seconds: float = option_field(
        1.0, "seconds between two looks for new versions", metavar="SECONDS"
    )
    cors: bool = option_field(
        False, "let pages of other sites call the REST API"
    )
    tls_certificate: str | None = option_field(
        None, "certificate, in PEM, for HTTPS and secure gRPC", metavar="FILE"
    )
    tls_key: str | None = option_field(
        None, "key of the certificate, in PEM", metavar="FILE"
    )
    token_file: str | None = option_field(
        None,
        "file with tokens, one in each line, of which clients must send one",
        metavar="FILE",
    )
    insecure: bool = option_field(
        False, "let clients of other machines connect without a token"
    )
    access_log: bool = option_field(
        True, "do not log requests", option="no-access-log"
    )

    def __post_init__(self) -> None:
        check_at_least(
            self,
            port=0,
            grpc_port=0,
            threads=1,
            beam_size=1,
            max_batch_rows=1,
            max_queue_rows=1,
            max_request_rows=1,
            max_request_text=1,
            max_answer_elements=1,
            max_body=1,
            max_connections=1,
            timeout=0.001,
            poll_seconds=0.01,
        )
        check_field(self, "host", self.host != "", "a name or an address")
        alpha = self.alpha
        is_finite = alpha is None or math.isfinite(alpha)
        check_field(self, "alpha", is_finite, "finite")
        check_field(self, "timeout", math.isfinite(self.timeout), "finite")
        if not (self.token_file or self.insecure or _is_local(self.host)):
            raise ValueError(
                "A server that other machines reach needs a token. Received: "
                f"host={shown(self.host)}. Name a file by --token-file, or let "
                "everybody in by --insecure."
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError(
                "A certificate and its key belong together. Received: "
                f"tls_certificate={self.tls_certificate}, "
                f"tls_key={self.tls_key}. Give both or neither."
            )


def _is_local(host):
    """Returns whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
