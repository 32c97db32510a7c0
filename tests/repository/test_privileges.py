"""A test that lacks something fails in CI, so that nothing is left out unseen; elsewhere it is
skipped."""

from __future__ import annotations

import pytest

from rankfold.interpose import descriptions
from support import privileges


@pytest.mark.parametrize("ci, ends", [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_missing_headers(
    monkeypatch: pytest.MonkeyPatch, ci: str, ends: type[BaseException]
) -> None:
    privileges.need_cuda_headers()
    monkeypatch.setattr(descriptions, "header_folders", lambda _library: [])
    monkeypatch.setenv("RANKFOLD_TEST_CI", ci)
    with pytest.raises(ends, match="no CUDA headers on this machine"):
        privileges.need_cuda_headers("nvml")
