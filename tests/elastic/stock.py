"""Runs a script in WORLD processes with the variables that torchrun sets, without rankfold's
runtime. Output goes to DIR/rank-<r>.out and .err. Exits with 0 if all do.

Usage: stock.py WORLD DIR SCRIPT [ARGUMENT…]"""

import contextlib
import os
import runpy
import socket
import sys
import traceback

world, folder, script, *arguments = sys.argv[1:]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
os.environ.update(WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, MASTER_ADDR="127.0.0.1")
os.environ.update(MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
pids = []
for rank in range(int(world)):
    pids.append(os.fork())
    if pids[-1] == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        for name, descriptor in (("out", 1), ("err", 2)):
            file = os.open(f"{folder}/rank-{rank}.{name}", os.O_WRONLY | os.O_CREAT)
            os.dup2(file, descriptor)
        sys.argv = [script, *arguments]
        status = 0
        try:
            runpy.run_path(script, run_name="__main__")
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            status = 1
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError):  # the script has closed it
                stream.flush()
        os._exit(status)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids))
