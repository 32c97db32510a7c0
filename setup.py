"""Adds to the wheel what pyproject.toml cannot describe: what `make native` builds, and a generated
module. An editable install is not affected: it uses the checkout as it is."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
NATIVE = ROOT / "build/native"

sys.path.insert(0, str(ROOT))
from rankfold import distribution, records  # noqa: E402  (needs the path above)


def libraries() -> list[Path]:
    """The C libraries, without links to them."""
    found = [path for path in (NATIVE / "lib").glob("*.so*") if not path.is_symlink()]
    if not found:
        raise SystemExit("the C libraries have not been built: run `make dist`")
    return found


class Package(build_py):
    """The Python sources, the libraries, the schemas, and the generated module."""

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        shutil.rmtree(self.build_lib, ignore_errors=True)  # it has modules of earlier commits
        super().run()
        package = Path(self.build_lib, "rankfold")
        for source, folder in (
            *((library, "native/lib") for library in libraries()),
            (NATIVE / "include/proxy.h", "native/include"),
            *((schema, "schemas") for schema in (ROOT / "schemas").glob("*.json")),
        ):
            (package / folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(source, package / folder)
        text = f"COMMIT = {distribution.commit()!r}\n{records.source()}"
        (package / f"{distribution.NAME}.py").write_text(text)


class Wheel(bdist_wheel):
    """A wheel for any Python 3, because the libraries do not use its C API, on Linux with the
    version of glibc that they need."""

    def get_tag(self) -> tuple[str, str, str]:
        if "editable_wheel" in self.distribution.commands:  # a checkout may not be built yet
            tag: tuple[str, str, str] = super().get_tag()
            return tag
        needed = max(
            int(minor)
            for library in libraries()
            for minor in re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)", library.read_bytes())
        )
        return "py3", "none", f"manylinux_2_{needed}_x86_64"


class Native(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=Native,
    cmdclass={"build_py": Package, "bdist_wheel": Wheel},
    options={"build": {"build_base": "build/wheel"}},
)
