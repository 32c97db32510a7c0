"""The JSON files of a store: sealed with a digest, and checked before anything is believed."""

from __future__ import annotations

import functools
import json
from typing import Any

from blake3 import blake3

from rankfold import paths
from rankfold.checkpoint.store.errors import Damaged, Refused

FORMAT, VERSION = "rankfold-checkpoints", 3  # 1 had no packs of differences, 2 no small buffers
Json = dict[str, Any]
SOUND_MAX = 10_000
_sound: set[tuple[str, str]] = set()  # kind and digest of documents that the schema allows


def seal(kind: str, **fields: Any) -> bytes:
    """The bytes of a new document of this kind. Raises ValueError where the schema has something
    against it: that is a fault of ours."""
    document = {"format": FORMAT, "version": VERSION, "kind": kind, **fields}
    document["digest"] = _digest(document)
    if fault := _fault(kind, document):
        raise ValueError(f"{kind}: {fault}")
    return _text(document)


def unseal(url: str, name: str, kind: str, data: bytes) -> Json:
    """What `seal` was given. Raises `Refused` for what no version of ours or a newer one wrote, and
    `Damaged` for what is not as it was written. All versions are to seal alike: so one flipped bit
    makes nothing newer."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(url, f"is no JSON: {error}", name=name) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        if kind == "root":  # a folder of somebody else's
            raise Refused(url, "was not written by rankfold", "name another URL", name=name)
        raise Damaged(url, f"is not of the format {FORMAT}", name=name)
    if document.get("digest") != _digest(document):
        raise Damaged(url, "does not have the digest that it names", name=name)
    version = document.get("version")
    if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
        what = f"has version {version} of the format, this rankfold knows {VERSION}"
        raise Refused(url, what, "use the newer rankfold that wrote it", name=name)
    if fault := _fault(kind, document):
        raise Damaged(url, fault, name=name)
    return document


def _text(document: Json) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _digest(document: Json) -> str:
    return blake3(_text({k: v for k, v in document.items() if k != "digest"})).hexdigest()


def _fault(kind: str, document: Json) -> str | None:
    """What the schema has against a document; one of the same digest is not looked at again."""
    digest = document["digest"]
    if (kind, digest) in _sound:
        return None
    for error in _validator(kind).iter_errors(document):
        return f"{error.json_path}: {error.message[:200]}"
    if len(_sound) >= SOUND_MAX:
        _sound.clear()
    _sound.add((kind, digest))
    return None


@functools.cache
def _validator(kind: str) -> Any:
    import jsonschema  # here, for most processes validate nothing

    schema = json.loads(paths.schema("checkpoint").read_text())
    return jsonschema.Draft202012Validator(_resolved(schema["$defs"], schema["$defs"][kind]))


def _resolved(definitions: Json, rule: Any) -> Any:
    """With what is referred to in its place: jsonschema takes ten times as long to look it up."""
    if isinstance(rule, list):
        return [_resolved(definitions, each) for each in rule]
    if not isinstance(rule, dict):
        return rule
    if "$ref" in rule:
        return _resolved(definitions, definitions[rule["$ref"].rpartition("/")[2]])
    return {key: _resolved(definitions, value) for key, value in rule.items()}
