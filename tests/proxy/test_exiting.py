"""Promise: a proxy that was requested to end does end, whatever hangs in it, and says what that
was."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rankfold import control
from support.leaks import State
from support.patience import scaled

HANGS = """
import sys, threading
from rankfold.log import set_up
from rankfold.proxy import server

set_up()
server.CLOSE_S = 0.1
proxy = server.Proxy(server.parse(sys.argv[1:]))
never = threading.Event()
if {where!r} == "loading":
    proxy.loads.pool.submit(never.wait)
else:
    close, proxy.native.close = proxy.native.close, never.wait
proxy.run()
"""


@pytest.mark.parametrize(
    ("where", "what"),
    [("loading", "a module or kernel that is being loaded"), ("device", "work that the device")],
)
def test_a_hanging_kernel_does_not_keep_a_device(state: State, where: str, what: str) -> None:
    state.path.mkdir(exist_ok=True)
    socket = state.folder / "proxy.sock"
    options = [
        "--device",
        "local/soft-0",
        "--type",
        "soft",
        "--memory",
        str(64 << 20),
        "--cc",
        "12.0",
    ]
    command = [sys.executable, "-c", HANGS.format(where=where), *options]
    with subprocess.Popen(
        [*command, "--state", str(state.path), "--socket", str(socket)],
        stderr=subprocess.PIPE,
        text=True,
    ) as proxy:
        assert proxy.stderr is not None and "serves at" in proxy.stderr.readline()
        control.call(socket, "shutdown")
        told = proxy.communicate(timeout=scaled(20))[1]
    assert proxy.returncode == 1
    assert f"device local/soft-0: exiting after 0.1 s of waiting for {what}" in told
