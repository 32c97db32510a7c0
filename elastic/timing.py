"""A process that runs operators one by one, and says how much CPU time each takes and what bits it
gives: `python -m rankfold.elastic.timing FILE`. See `eligibility`.

FILE has the operators with their arguments. The process writes READY when it has read them; then
it reads numbers of operators from stdin, one per line, and answers each with a line of JSON:
`cpu_s`, `digest`, and `onednn`, the kinds of oneDNN's primitives that have run; or `error`.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import time
from typing import Any

import torch

from .operators import Call, Format, copied, tensors

READY = "ready"


def _prepared(call: Call) -> tuple[Any, list[Any], dict[str, Any]]:
    """The operator, and copies of its arguments, because it may change them."""
    operator: Any = torch.ops
    for name in call.name.split("."):
        operator = getattr(operator, name)
    options = {
        name: getattr(torch, each.rpartition(".")[2]) if isinstance(each, Format) else copied(each)
        for name, each in call.options.items()
    }
    return operator, copied(list(call.arguments)), options


def _digest(result: Any) -> str:
    found = hashlib.sha256()
    for tensor in tensors(result):
        found.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _onednn(call: Call) -> list[str]:
    """oneDNN writes a line per primitive to stdout, which is a file here."""
    before = os.fstat(1).st_size
    operator, arguments, options = _prepared(call)
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        operator(*arguments, **options)
    ctypes.CDLL(None).fflush(None)
    lines = os.pread(1, os.fstat(1).st_size - before, before).decode().splitlines()
    fields = [line.split(",") for line in lines if ",exec,cpu," in line]
    return sorted({each[each.index("cpu") + 1] for each in fields})


def _measured(call: Call, known: dict[str, list[str]], key: str) -> dict[str, Any]:
    if key not in known:
        known[key] = _onednn(call)
    operator, arguments, options = _prepared(call)
    torch.manual_seed(1)
    begin = time.thread_time()
    result = operator(*arguments, **options)
    cpu_s = time.thread_time() - begin
    return {"cpu_s": cpu_s, "digest": _digest(result), "onednn": known[key]}


def main(path: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    with open(f"{path}.{os.getpid()}", "w+") as output:
        os.dup2(output.fileno(), 1)
    torch.set_num_threads(1)
    calls: list[Call] = [Call(*each) for each in torch.load(path, weights_only=False)]
    known: dict[str, list[str]] = {}
    print(READY, file=answers)
    for line in sys.stdin:
        try:
            answer = _measured(calls[int(line)], known, line)
        except Exception as error:  # noqa: BLE001  (whatever the operator raises; it is reported)
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main(sys.argv[1])
