"""Both APIs' names of errors are those of NVIDIA's headers, for every number there is."""

from __future__ import annotations

import re

import pytest

from rankfold.interpose import descriptions
from support.preloaded import Build, Run

HEADERS = descriptions.header_folders()
pytestmark = pytest.mark.cuda_headers

PROGRAM = """
#include <stdio.h>
int main(void)
{
    for (int error = 0; error <= 1100; error++) {
        const char *name = NULL, *text = NULL;
        if (strcmp(cudaGetErrorName(error), "unrecognized error code"))
            printf("cudart %d %s|%s\\n", error, cudaGetErrorName(error), cudaGetErrorString(error));
        if (!cuGetErrorName(error, &name) && !cuGetErrorString(error, &text))
            printf("cuda %d %s|%s\\n", error, name, text);
        IS(name == NULL, text == NULL);
    }
    return 0;
}
"""


def named_in(header: str, pattern: str) -> dict[int, str]:
    """Numbers and names of an enumeration in one of NVIDIA's headers."""
    path = next(folder / header for folder in HEADERS if (folder / header).exists())
    return {int(n): name for name, n in re.findall(pattern + r"\s*=\s*(\d+)", path.read_text())}


def test_every_error_has_its_name_and_a_text(build: Build, run: Run) -> None:
    ours: dict[str, dict[int, str]] = {"cudart": {}, "cuda": {}}
    for line in run(build(PROGRAM)).stdout.splitlines():
        said, text = line.split("|")
        api, number, name = said.split()
        ours[api][int(number)] = name
        assert text and text != "unrecognized error code"
    runtime = named_in("driver_types.h", r"\b(cudaSuccess|cudaError(?!ApiFailureBase)[A-Z]\w+)")
    driver = named_in("cuda.h", r"\b(CUDA_SUCCESS|CUDA_ERROR_\w+)")
    assert len(runtime) > 120 and len(driver) > 80
    assert ours["cudart"].items() >= runtime.items()
    assert ours["cuda"].items() >= driver.items()
