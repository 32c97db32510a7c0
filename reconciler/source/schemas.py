"""Reports how a document violates the schemas in ``schemas/``, and what would be correct."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from rankfold import paths
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.fields import fields_of
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.source import yamldoc

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError

ENV = ("spec", "env")  # its values are secrets


def validator(schema: Json) -> Draft202012Validator:
    return cast("Draft202012Validator", _validators()(schema))


@functools.cache
def _validators() -> Any:
    import jsonschema  # here: most commands do not need it, and it takes a quarter of their start

    def unique(_: Any, wanted: bool, items: Any, rule: Json) -> Iterable[ValidationError]:
        """Replaces the check of jsonschema, which compares each item with each other one and takes
        minutes for a long list. The text of the error is not used."""
        if wanted and isinstance(items, list):
            texts = {json.dumps(each, sort_keys=True) for each in items}
            if len(texts) < len(items):
                yield jsonschema.ValidationError("not unique")

    ours = {"uniqueItems": unique}
    extend: Any = jsonschema.validators.extend
    return extend(jsonschema.Draft202012Validator, ours)


@functools.cache
def load_schema(kind: str) -> Json:
    schema: Json = json.loads(paths.schema(kind).read_text())
    if kind == "Job":  # the table defines the fields; the file repeats them, for editors
        for field in fields_of(Job).values():
            *where, name = field.path.split(".")
            within = functools.reduce(lambda rule, part: rule["properties"][part], where, schema)
            within["properties"][name] = field.rule
    validator(schema).check_schema(schema)
    return schema


def walk(
    schema: Json, value: Any, path: yamldoc.Path = ()
) -> Iterable[tuple[yamldoc.Path, Json, Any]]:
    """Yield (path, schema, value) of every field that is given and known."""
    yield path, schema, value
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for key, each in value.items():
            if key in known:
                yield from walk(known[key], each, (*path, key))
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, each in enumerate(value):
            yield from walk(schema["items"], each, (*path, index))


def default_of(path: yamldoc.Path, rule: Json, document: Json) -> Any:
    """The default of a field; the default of ``parallelism.data`` is worldSize."""
    if path == ("spec", "parallelism", "data"):
        return document["spec"].get("worldSize") if isinstance(document.get("spec"), dict) else None
    return rule.get("default")


def schema_faults(schema: Json, value: Any) -> Iterable[tuple[yamldoc.Path, str]]:
    """The path and a description of each violation of a schema."""
    for error in validator(schema).iter_errors(value):
        path: yamldoc.Path = tuple(error.absolute_path)
        yield from _explain(error, path)


def not_built(schema: Json, value: Any) -> Iterable[tuple[yamldoc.Path, str]]:
    """Fields that are not implemented yet; a field may have its default value."""
    for path, rule, given in walk(schema, value):
        default = default_of(path, rule, value)
        if rule.get("x-notImplemented") and given != default:
            only = "" if default is None else f"; only its default {json.dumps(default)} is"
            yield path, f"is not implemented yet{only}; leave it out"


def _explain(error: ValidationError, path: yamldoc.Path) -> Iterable[tuple[yamldoc.Path, str]]:
    rule, got, wanted = error.schema, error.instance, cast(Any, error.validator_value)
    if not isinstance(rule, dict):
        yield path, error.message
    elif error.validator == "required":
        for name in wanted:
            if name not in cast(Json, got):
                description = rule.get("properties", {}).get(name, {}).get("description", "")
                yield (*path, name), f"is missing. {description}".strip()
    elif error.validator == "additionalProperties":
        known = list(rule.get("properties", {}))
        for name in cast(Json, got):
            if name not in known:
                near = difflib.get_close_matches(str(name), known, 1)
                hint = f"did you mean {near[0]}?" if near else f"known fields: {', '.join(known)}"
                yield (*path, name), f"there is no such field; {hint}"
    elif error.validator in ("type", "enum", "const"):
        yield path, _wrong_value(str(error.validator), wanted, got, _quoted(got, path))
    else:
        out = _out_of_bounds(error, _quoted(got, path))
        yield path, f"{out}. {rule.get('description', '')}".strip()


A_NUMBER = "a number"


def _quoted(got: Any, path: yamldoc.Path) -> str:
    """A wrong value for a message. For values that may contain values of `env`, only the type."""
    if isinstance(got, dict):
        return "a mapping"
    if isinstance(got, list) and any(isinstance(each, (dict, list)) for each in got):
        return "a list"
    if path[:2] != ENV and path not in ((), ENV[:1]):
        return yamldoc.excerpt(json.dumps(got, default=str))
    if got is None:
        return "nothing"
    if isinstance(got, (bool, list)):
        return "a list" if isinstance(got, list) else "true or false"
    return "a text" if isinstance(got, str) else A_NUMBER


def _out_of_bounds(error: ValidationError, shown: str) -> str:
    wanted = cast(Any, error.validator_value)
    if error.validator == "minimum":
        return f"must be at least {wanted}, not {shown}"
    if error.validator == "maximum":
        return f"must be at most {wanted}, not {shown}"
    if error.validator in ("minLength", "minItems"):
        return "must not be empty"
    return f"{shown} is invalid"


def _wrong_value(rule: str, wanted: Any, got: Any, shown: str) -> str:
    if rule == "const":
        return f"must be {wanted}, not {shown}"
    if rule == "enum":
        allowed = [str(each) for each in wanted]
        near = difflib.get_close_matches(str(got), allowed, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"must be one of {', '.join(allowed)}, not {shown}{hint}"
    names = {
        "object": "a mapping",
        "array": "a list",
        "string": "a text",
        "number": "a number",
        "integer": "a whole number",
        "boolean": "true or false",
    }
    words = " or ".join(names.get(w, w) for w in ([wanted] if isinstance(wanted, str) else wanted))
    quoted = isinstance(got, (int, float)) and not isinstance(got, bool) and "string" in wanted
    hint = f': write "{got}", in quotes' if quoted else ""
    if quoted and shown == A_NUMBER:
        hint = ": put it in quotes"
    if isinstance(got, bool) and "string" in wanted:
        hint = ": YAML reads this as true or false, put it in quotes"
    return f"must be {words}, not {shown}{hint}"
