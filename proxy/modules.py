"""Modules by content: images on disk (images.py), loaded once per proxy, found by hash after a
move.

A rank's module is transferred once, from the program; the rank's saved state names it by hash only.
All calls may come from several threads.
"""

from __future__ import annotations

import importlib
import logging
import threading
from pathlib import Path
from typing import Any, Protocol, cast

from rankfold.log import area
from rankfold.proxy.images import Images
from rankfold.proxy.ptx.errors import (
    INVALID_IMAGE,
    NOT_FOUND,
    NOT_SUPPORTED,
    UNKNOWN,
    ModuleError,
)
from rankfold.proxy.ptx.fatbin import IMAGE_LIBRARY, is_fatbin
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo

log = area(__file__)


class Loader(Protocol):
    """The loader of a type of device, from its `modules.py`: modules and kernels of this process's
    device."""

    compute_capability: tuple[int, int]

    def module(self, image: bytes, kind: int, cc: tuple[int, int] | None = None) -> ModuleInfo: ...

    def function(self, module: ModuleInfo, name: str) -> FunctionInfo: ...

    def facts(self) -> dict[str, int]: ...

    def close(self) -> None: ...


def _loader(hal: str, state: Path, cc: tuple[int, int]) -> Loader:
    """The loader for this type of device. A proxy imports only its own: others may not be
    installed."""
    kind = importlib.import_module(f"rankfold.proxy.hal.{hal}.modules")
    return cast(Loader, kind.open_loader(state, cc))


class ModuleStore:
    """The modules of a proxy, whose device is of type `hal`."""

    def __init__(self, hal: str, state: Path, cc: tuple[int, int]):
        self.images = Images(state / "modules")
        self._lock = threading.Lock()
        self._loaded: dict[str, Any] = {}
        self._prebuilt: set[str] = set()  # digests of fatbins
        self._kernels: set[tuple[str, str]] = set()
        self._hal = hal
        self._loader = _loader(hal, state, cc)

    def close(self) -> None:
        """Release the compiler."""
        self._loader.close()

    def facts(self) -> dict[str, int]:
        """The device's numbers that ranks see instead of the usual ones: fields of struct
        rf_device."""
        return self._loader.facts()

    @property
    def compute_capability(self) -> tuple[int, int]:
        """The device's, for which code is chosen unless a job has another one."""
        return self._loader.compute_capability

    @property
    def kernels(self) -> int:
        """The number of kernels loaded. Their code stays for the life of this process."""
        return len(self._kernels)

    def module(
        self, image: bytes, kind: int, digest: str, cc: tuple[int, int], job: int
    ) -> tuple[Any, int, str]:
        """Load an image, or (empty image) the stored one.

        Returns (ModuleInfo, 0, "") or (None, CUresult, the reason). The caller has the image
        stored afterwards (`images.store_taken`).

        `cc`: the compute capability for which its code is chosen. `job`: the job that needs it.
        """
        try:
            if digest and not image:
                return self._stored(digest, cc), 0, ""
            self._check(kind)
            info = self._loader.module(image, kind, cc)
            self.images.take(info.hash, image, kind, job)
        except ModuleError as error:
            # A client asks every device for NVIDIA's libraries.
            level = logging.INFO if kind == IMAGE_LIBRARY else logging.ERROR
            log.log(level, "module refused: %s", error)
            return None, error.code, error.message
        return self._keep(info, image), 0, ""

    def function(self, digest: str, name: str, cc: tuple[int, int]) -> tuple[Any, int, str]:
        """Compile a function: (FunctionInfo, 0, "") or (None, CUresult, the reason).

        A program that makes PTX at run time can use other code if its PTX is refused. There is
        no substitute for a kernel of a fatbin, and CUB ignores such an error: its rank fails.
        """
        try:
            info = self._loader.function(self._stored(digest, cc), name)
            self._kernels.add((digest, name))
            return info, 0, ""
        except ModuleError as error:
            why = error.message if name in error.message else f"kernel {name}: {error.message}"
            log.error("%s", why)
            fails = error.code == NOT_SUPPORTED and digest in self._prebuilt
            return None, UNKNOWN if fails else error.code, why

    def _check(self, kind: int) -> None:
        if kind == IMAGE_LIBRARY and self._hal != "nvidia":
            raise ModuleError(
                NOT_SUPPORTED, "NVIDIA's own libraries run on devices of type nvidia only"
            )

    def _keep(self, info: Any, image: bytes) -> Any:
        with self._lock:
            if is_fatbin(image):
                self._prebuilt.add(info.hash)
            return self._loaded.setdefault(info.hash, info)

    def _stored(self, digest: str, cc: tuple[int, int]) -> Any:
        with self._lock:
            if digest in self._loaded:
                return self._loaded[digest]
        for path, image, kind in self.images.find(digest):
            self._check(kind)
            info = self._loader.module(image, kind, cc)
            if info.hash != digest:
                why = f"{path} is damaged: its content does not have the hash in its name"
                raise ModuleError(INVALID_IMAGE, why)
            return self._keep(info, image)
        raise ModuleError(NOT_FOUND, f"module {digest} is not in {self.images.folder}")
