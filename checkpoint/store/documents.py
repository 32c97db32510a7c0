"""The JSON documents of a store: sealed with a digest, and checked before they are used."""

from __future__ import annotations

import functools
import json
from typing import Any

from blake3 import blake3

from rankfold import paths
from rankfold.checkpoint.store.errors import Damaged, Refused

FORMAT, VERSION = "rankfold-checkpoints", 3  # 1: no packs of differences; 2: no small buffers
Json = dict[str, Any]
VALID_MAX = 10_000
_valid: set[tuple[str, str]] = set()  # kind and digest of documents that match the schema


def seal(kind: str, **fields: Any) -> bytes:
    """The bytes of a new document of this kind. Raises ValueError if it violates the schema, which
    is a defect of ours."""
    document = {"format": FORMAT, "version": VERSION, "kind": kind, **fields}
    document["digest"] = _digest(document)
    if fault := _fault(kind, document):
        raise ValueError(f"{kind}: {fault}")
    return _text(document)


def unseal(url: str, name: str, kind: str, data: bytes) -> Json:
    """The document that `seal` wrote. Raises `Refused` if rankfold did not write it, or a newer
    version did, and `Damaged` if it has changed. All versions must compute the digest alike, so
    that a flipped bit never makes a document look newer."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(url, f"is not JSON: {error}", name=name) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        if kind == "root":  # a folder that is not ours
            raise Refused(url, "was not written by rankfold", "name another URL", name=name)
        raise Damaged(url, f"is not of the format {FORMAT}", name=name)
    if document.get("digest") != _digest(document):
        raise Damaged(url, "does not have the digest that it names", name=name)
    version = document.get("version")
    if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
        problem = f"has version {version} of the format, this rankfold knows {VERSION}"
        raise Refused(url, problem, "use the newer rankfold that wrote it", name=name)
    if fault := _fault(kind, document):
        raise Damaged(url, fault, name=name)
    return document


def _text(document: Json) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _digest(document: Json) -> str:
    return blake3(_text({k: v for k, v in document.items() if k != "digest"})).hexdigest()


def _fault(kind: str, document: Json) -> str | None:
    """The first violation of the schema, or None. A document with a known digest is not checked
    again."""
    digest = document["digest"]
    if (kind, digest) in _valid:
        return None
    for error in _validator(kind).iter_errors(document):
        return f"{error.json_path}: {error.message[:200]}"
    if len(_valid) >= VALID_MAX:
        _valid.clear()
    _valid.add((kind, digest))
    return None


@functools.cache
def _validator(kind: str) -> Any:
    import jsonschema  # imported here, as most processes validate nothing

    schema = json.loads(paths.schema("checkpoint").read_text())
    return jsonschema.Draft202012Validator(_resolved(schema["$defs"], schema["$defs"][kind]))


def _resolved(definitions: Json, rule: Any) -> Any:
    """Replace references by what they refer to: jsonschema takes ten times as long to resolve
    them."""
    if isinstance(rule, list):
        return [_resolved(definitions, each) for each in rule]
    if not isinstance(rule, dict):
        return rule
    if "$ref" in rule:
        return _resolved(definitions, definitions[rule["$ref"].rpartition("/")[2]])
    return {key: _resolved(definitions, value) for key, value in rule.items()}
