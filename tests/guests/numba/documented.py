"""Numba-CUDA's documented examples and some of its own tests, as its package has them.

For pytest in a rank. They compare with NumPy, or with Python.
"""

import pytest
from numba.cuda.tests.cudapy.test_atomics import TestCudaAtomics
from numba.cuda.tests.cudapy.test_gufunc import TestCUDAGufunc, TestMultipleOutputs
from numba.cuda.tests.cudapy.test_laplace import TestCudaLaplace
from numba.cuda.tests.cudapy.test_matmul import test_cuda_matmul
from numba.cuda.tests.cudapy.test_reduction import TestReduction
from numba.cuda.tests.cudapy.test_sm import TestSharedMemory, TestSharedMemoryIssue
from numba.cuda.tests.cudapy.test_vectorize import TestCUDAVectorize
from numba.cuda.tests.doc_examples.test_cg import TestCooperativeGroups
from numba.cuda.tests.doc_examples.test_cpointer import TestCPointer
from numba.cuda.tests.doc_examples.test_cpu_gpu_compat import TestCpuGpuCompat
from numba.cuda.tests.doc_examples.test_ffi import TestFFI
from numba.cuda.tests.doc_examples.test_globals import TestGlobals
from numba.cuda.tests.doc_examples.test_laplace import TestLaplace
from numba.cuda.tests.doc_examples.test_matmul import test_matmul
from numba.cuda.tests.doc_examples.test_montecarlo import TestMonteCarlo
from numba.cuda.tests.doc_examples.test_random import TestRandom
from numba.cuda.tests.doc_examples.test_reduction import TestReduction as TestReductionExample
from numba.cuda.tests.doc_examples.test_sessionize import TestSessionization
from numba.cuda.tests.doc_examples.test_ufunc import TestUFunc
from numba.cuda.tests.doc_examples.test_vecadd import TestVecAdd


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    """The fixture from the conftest.py of Numba-CUDA's repository, which the package omits."""
    request.cls._dump_failed_filechecks = False
