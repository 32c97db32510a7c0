"""Imports PyTorch once, and runs Python programs in forks of itself.

Reads lines of JSON from stdin: arguments as python has them, folder, environment, and files for
stdout and stderr. Answers each with the program's process id, and with its exit status."""

import atexit
import json
import os
import resource
import runpy
import signal
import sys
import tempfile
import traceback

import torch


def run(arguments, folder, environment, out, err):
    """In the fork. Does not return."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for path, descriptor in (("/dev/null", 0), (out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    if "LIMIT_NOFILE" in environment:
        limit = int(environment["LIMIT_NOFILE"])
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    status = 0
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            exec(arguments[1], {"__name__": "__main__"})
        else:
            sys.argv = arguments
            sys.path[0] = os.path.dirname(arguments[0])
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


torch.optim.SGD([torch.zeros(1)], 0.1)  # imports most of the rest
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        run(**json.loads(line))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
