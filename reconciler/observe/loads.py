"""Reads the loads of services from files, in a thread, and from URLs, in one for each: a file
system or a server that hangs delays nothing else.

A URL is a load's source with the name of a metric behind a #, if it has one (model/desired.py).
"""

from __future__ import annotations

import math
import os
import re
import stat
import threading
import time
from collections.abc import Iterable

from msgspec import Struct

from rankfold.legible import legible

EVERY_S = 0.1  # between two readings of a file
BYTES_MAX = 64
URL_EVERY_S = 0.5  # between an answer and the next request
URL_WITHIN_S = 5.0
URL_BYTES_MAX = 1 << 20
LOAD_MAX = 1e15


class Load(Struct, frozen=True):
    """A load, or why it cannot be read. None and no problem: it has not been read yet."""

    value: float | None = None
    problem: str = ""


class Loads:
    """The loads in some files and at some URLs, as they were read last."""

    def __init__(self) -> None:
        self._files: frozenset[str] = frozenset()
        self._urls: dict[str, Requested] = {}
        self._found: dict[str, Load] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def of(self, sources: Iterable[str]) -> dict[str, Load]:
        """The loads in these files and at these URLs, which are read from now on."""
        wanted = frozenset(sources)
        urls = frozenset(each for each in wanted if not each.startswith("/"))
        for url in self._urls.keys() - urls:
            self._urls.pop(url).stop()
        for url in urls - self._urls.keys():
            self._urls[url] = Requested(url)
        self._files = wanted - urls
        if self._files and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="loads", daemon=True)
            self._thread.start()
        found = self._found
        return {file: found.get(file, Load()) for file in self._files} | {
            url: each.load() for url, each in self._urls.items()
        }

    def close(self) -> None:
        self._stopped.set()
        for each in self._urls.values():
            each.stop()

    def _run(self) -> None:
        failed: dict[str, Load] = {}
        while not self._stopped.wait(EVERY_S):
            found = {}
            for file in self._files:
                load = read(file)
                # A file that is being written may be empty: a problem counts when it lasts.
                lasts = not load.problem or failed.get(file) == load
                found[file] = load if lasts else self._found.get(file, Load())
                failed[file] = load
            self._found = found


class Requested:
    """The load at a URL, which a thread requests again and again."""

    def __init__(self, url: str):
        self._url = url
        self._found, self._begun = Load(), time.monotonic()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="load", daemon=True).start()

    def load(self) -> Load:
        if time.monotonic() - self._begun > URL_WITHIN_S + 2 * URL_EVERY_S:
            return Load(problem=f"{self._url} has not answered within {URL_WITHIN_S:g} s")
        return self._found

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        failed = Load()
        while not self._stopped.is_set():
            self._begun = time.monotonic()
            load = fetch(self._url)
            if not load.problem or load == failed:
                self._found = load
            failed = load
            self._stopped.wait(URL_EVERY_S)


def fetch(url: str, within_s: float = URL_WITHIN_S) -> Load:
    """The load at a URL."""
    import http.client  # here: few fleets have services, and fewer have URLs
    import urllib.error
    import urllib.request

    opener = urllib.request.OpenerDirector()  # without redirects, proxies and other schemes
    for handler in (
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    address, _, metric = url.partition("#")
    deadline = time.monotonic() + within_s
    content = b""
    try:
        with opener.open(address, timeout=within_s) as answer:
            while part := answer.read1(1 << 16):
                content += part
                if time.monotonic() > deadline:
                    raise TimeoutError
                if len(content) > URL_BYTES_MAX:
                    return Load(problem=f"{url}: the answer has more than {URL_BYTES_MAX} bytes")
        return Load(_metric(content, metric) if metric else _number(content))
    except TimeoutError:
        return Load(problem=f"{url} has not answered within {within_s:g} s")
    except urllib.error.HTTPError as error:
        error.close()
        return Load(problem=f"{url}: the answer has status {error.code}, not 200")
    except urllib.error.URLError as error:
        why = error.reason
        if isinstance(why, TimeoutError):
            return Load(problem=f"{url} has not answered within {within_s:g} s")
        text = getattr(why, "strerror", None) or str(why)
        return Load(problem=f"{url} cannot be read: {legible(text)}")
    except (OSError, http.client.HTTPException) as error:
        return Load(problem=f"{url} cannot be read: {legible(str(error)) or type(error).__name__}")
    except ValueError as error:
        return Load(problem=f"{url} {error}")


def _metric(content: bytes, name: str) -> float:
    """The sum of a metric's values, whatever their labels, in the text format of Prometheus. Raises
    ValueError."""
    line = re.compile(rf"{re.escape(name)}(?:\{{.*\}})?[ \t]+([^ \t]+)(?:[ \t]+-?[0-9]+)?[ \t]*")
    found = [line.fullmatch(each) for each in content.decode(errors="replace").splitlines()]
    values = [match[1] for match in found if match]
    if not values:
        raise ValueError(f"has no metric {name}")
    return _checked(math.fsum(_float(each) for each in values), f"must have a metric {name} ")


def read(file: str) -> Load:
    """The load in a file."""
    try:
        return Load(_number(_content(file)))
    except OSError as error:
        return Load(problem=f"{legible(file)} cannot be read: {error.strerror}")
    except ValueError as error:
        return Load(problem=f"{legible(file)} {error}")


def _content(file: str) -> bytes:
    """Raises OSError, ValueError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is not a plain file")
        return os.read(descriptor, BYTES_MAX + 1)
    finally:
        os.close(descriptor)


def _number(content: bytes) -> float:
    """Raises ValueError."""
    wrong = f"must hold one number from 0 to {LOAD_MAX:g}"
    if len(content) > BYTES_MAX:
        raise ValueError(f"{wrong}, and has more than {BYTES_MAX} bytes")
    try:
        value = float(content.decode("ascii"))
    except ValueError:
        raise ValueError(f"{wrong}, not {legible(content.decode(errors='replace'))!r}") from None
    return _checked(value, "must hold one number ")


def _float(text: str) -> float:
    """Raises ValueError."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"must hold numbers, not {legible(text[:BYTES_MAX])!r}") from None


def _checked(value: float, wrong: str) -> float:
    """Raises ValueError."""
    if not math.isfinite(value) or not 0 <= value <= LOAD_MAX:
        raise ValueError(f"{wrong}from 0 to {LOAD_MAX:g}, not {value:g}")
    return value
