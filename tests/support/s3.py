"""A server that speaks S3, in a process of its own (moto's, over HTTP)."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

START_S = 60.0


@contextlib.contextmanager
def server() -> Iterator[dict[str, Any]]:
    """The options with which fsspec opens `s3://bucket/…` there; the bucket is there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _make_bucket(url, process)
        yield {
            "key": "k", "secret": "s", "endpoint_url": url,
            "client_kwargs": {"region_name": "us-east-1"},
            "config_kwargs": {"retries": {"max_attempts": 1}},
        }  # fmt: skip
    finally:
        process.kill()
        process.wait()


def _make_bucket(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        request = urllib.request.Request(f"{url}/bucket", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None and time.monotonic() < deadline, "no S3 server came up"
            time.sleep(0.1)
