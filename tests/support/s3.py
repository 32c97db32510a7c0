"""A server that speaks S3, in a process of its own (moto's, over HTTP)."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from support.patience import scaled

START_S = 60.0


@contextlib.contextmanager
def server() -> Iterator[dict[str, Any]]:
    """The options with which fsspec opens `s3://bucket/…` there; the bucket is there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _make_bucket(url, process)
        yield {
            "key": "k",
            "secret": "s",
            "endpoint_url": url,
            "client_kwargs": {"region_name": "us-east-1"},
            "config_kwargs": {"retries": {"max_attempts": 1}},
        }
    finally:
        process.kill()
        process.wait()


def _make_bucket(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + scaled(START_S)
    while True:
        request = urllib.request.Request(f"{url}/bucket", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=scaled(10)):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None and time.monotonic() < deadline, "no S3 server came up"
            time.sleep(0.1)


class Line:
    """A proxy between a client and a server, with its own port, that tests can cut or slow down.

    `state`: through; silent (it takes connections and bytes, and nothing comes back); slow (each
    answer takes `slow_s`); gone (no process listens). `loses`: the answer to the next request that
    has these bytes is lost, with its connection, though the server has done what it was asked.
    """

    slow_s = 1.0

    def __init__(self, server: str):
        self._to = ("127.0.0.1", int(server.rpartition(":")[2]))
        self._open: set[socket.socket] = set()
        self.state, self.loses = "through", b""
        self.taken = 0  # connections
        self._listen(0)
        self.url = f"http://127.0.0.1:{self._port}"

    def becomes(self, state: str) -> None:
        """Connections that there are end with what there was, except for silence."""
        before, self.state = self.state, state
        if state == "gone":
            self.close()
        elif before == "gone":
            self._listen(self._port)
        elif before == "silent":
            self._drop()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()
        self._drop()

    def _drop(self) -> None:
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _listen(self, port: int) -> None:
        self._server = socket.create_server(("127.0.0.1", port))
        self._port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.taken += 1
            server = socket.create_connection(self._to)
            self._open |= {client, server}
            lost = threading.Event()
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(*ends, lost), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            answers = source.getpeername() == self._to
            while data := source.recv(1 << 16):
                if not answers and self.loses and self.loses in data:
                    self.loses = b""
                    lost.set()
                if answers and lost.is_set() and not data.startswith(b"HTTP/1.1 100 "):
                    break
                if answers and self.state == "slow":
                    time.sleep(self.slow_s)
                if not answers or self.state != "silent":
                    target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()
