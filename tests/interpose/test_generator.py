"""An annotation that does not match its prototype is refused, not compiled."""

from __future__ import annotations

import pytest

from rankfold.interpose import descriptions, headers, libraries
from support.privileges import need_cuda_headers

HEAD = "library: cudart\nresult: cudaError_t\nrefused_result: '801'\nfunctions:\n"


def refusal(entry: str) -> str:
    with pytest.raises(descriptions.Mismatch) as caught:
        descriptions.load_library(f"{HEAD}  f: {entry}\n")
    return str(caught.value)


@pytest.mark.parametrize(
    "entry, expected",
    [
        ('{params: "int a", local: "0"}', "neither used nor ignored: ['a']"),
        ('{params: "int a", local: f(a), ignore: [a]}', "both used and ignored: ['a']"),
        ('{params: "int a", local: f(a), ignore: [b]}', "ignores ['b']"),
        ('{params: "int a, int a", local: f(a)}', "two parameters have one name"),
        ('{params: "int", local: "0"}', "'int' has no name"),
        ('{params: "int a"}', "exactly one of"),
        ('{params: "int a", local: f(a), hand: x.c}', "exactly one of"),
        ('{local: "0"}', "has no params"),
        ('{params: void, local: "0", pre_thread: ptsz}', "unknown keys ['pre_thread']"),
        ('{params: void, local: "0", per_thread: both}', "per_thread is"),
    ],
)
def test_a_contradiction_is_an_error_that_names_the_function(entry: str, expected: str) -> None:
    message = refusal(entry)
    assert message.startswith("cudart.yaml: f: ") and expected in message


@pytest.mark.parametrize(
    "contexts, expected",
    [
        ("{usual: current, never: f}", "unknown keys ['never']"),
        ("{usual: current, driver: f g}", "not described, or listed twice: ['g']"),
        ("{usual: current, driver: f, nothing: f}", "not described, or listed twice: ['f']"),
    ],
)
def test_functions_that_need_a_context_are_described_once(contexts: str, expected: str) -> None:
    text = f'{HEAD}  f: {{params: void, local: "0"}}\ncontexts: {contexts}\n'
    with pytest.raises(descriptions.Mismatch) as caught:
        descriptions.load_library(text)
    assert expected in str(caught.value)


def test_declarations_are_read_as_a_compiler_reads_them() -> None:
    text = """
    typedef int CUresult; typedef unsigned long size_t;
    CUresult cuInit(unsigned int Flags);
    extern CUresult cuMemcpy_ptds(void (*dst)(int, int),
                                  size_t ByteCount);
    CUresult cuNothing(void);
    int cudaNot(int a), other(int b);
    """
    found = {name: d.parameters for name, d in headers.declared("cuda", text).items()}
    assert found == {"cuInit": 1, "cuMemcpy_ptds": 2, "cuNothing": 0}


def test_a_description_with_other_parameters_than_the_header_is_refused() -> None:
    library = descriptions.load_library(f'{HEAD}  f: {{params: "int a", local: f(a)}}\n')
    descriptions.check_header(library, {"f": headers.Declared("int f(int a)", 1)})
    with pytest.raises(descriptions.Mismatch, match="the header says: int f"):
        descriptions.check_header(library, {"f": headers.Declared("int f(int a, int b)", 2)})


@pytest.mark.parametrize("library", ["cudart", "cuda", "nvml"])
def test_the_description_knows_every_function_of_the_headers(library: str) -> None:
    """Its list of names serves machines without headers, and so must be complete."""
    need_cuda_headers(library)
    in_headers = set(descriptions.read_header(library))
    described = descriptions.load_library((libraries.API / f"{library}.yaml").read_text())
    assert in_headers <= {name for f in described.functions for name in f.names}


def test_a_function_belongs_to_the_library_with_the_longest_prefix() -> None:
    names = ("cuInit", "cudaMalloc", "cublasCreate_v2", "cublasLtCreate", "free")
    found = [headers.library_of(name) for name in names]
    assert found == ["cuda", "cudart", "cublas", "cublasLt", ""]
