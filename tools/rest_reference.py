"""docs/reference/rest.md, made from the application that `outlast serve` runs."""

import sys
from pathlib import Path

from sqlalchemy.ext.asyncio import create_async_engine

from outlast.api import ApiOptions, make_app
from outlast.api.app import document_of
from outlast.api.auth import May
from outlast.ops import Desk

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "rest.md"

ABOUT = """\
# The REST API

Made by `make reference` from `outlast.api`; do not edit. How to use it:
[dead letters over HTTP](../operate/rest.md).

Send `Authorization: Bearer TOKEN`. What changes something takes an `Idempotency-Key`. A body is
JSON, with `Content-Type: application/json`; members and parameters that are not named here are
refused. `/openapi.json` (any scope) has the answers, too. In the tables `*` marks what is needed.

"""

HEAD = "| Name | In | Kind | Default | |\n|---|---|---|---|---|\n"

INSIDE = ("Change", "ReplayCriteria")
"""Shapes that are members of bodies."""

LIMITS = """\
## Limits

| What | At most |
|---|---|
"""


def application():
    """As it is served; the database is never asked."""
    return make_app(Desk(create_async_engine("sqlite+aiosqlite:///nowhere.db")))


def scopes(app):
    found = {}
    for route in app.routes:
        needed = [d.call.scope for d in route.dependant.dependencies if isinstance(d.call, May)]
        for method in route.methods:
            found[method, route.path] = needed[0] if needed else None
    return found


def page():
    app = application()
    document, needs = document_of(app), scopes(app)
    parts = [ABOUT, "| Route | Scope | |\n|---|---|---|\n"]
    details = []
    for path, item in document["paths"].items():
        for method, operation in item.items():
            name = f"{method.upper()} {path}"
            about = first_line(operation["description"])
            scope = needs[method.upper(), path]
            parts.append(f"| `{name}` | {scope or 'nobody asks'} | {about} |\n")
            table = given(document, operation)
            if table:
                details.append(f"## `{name}`\n\n{about}\n\n{table}")
    return "\n".join(["".join(parts), *details, *parts_of(document), limits()])


def parts_of(document):
    """The shapes inside of bodies."""
    for name in INSIDE:
        schema = document["components"]["schemas"][name]
        members = "".join(
            line(member, "body", about, about.get("description", ""))
            for member, about in schema["properties"].items()
        )
        yield f"## {name}\n\n{first_line(schema['description'])}\n\n{HEAD}{members}"


def given(document, operation):
    """Parameters and the members of the body."""
    lines = []
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "header" and parameter["name"].lower() == "idempotency-key":
            continue
        if parameter["in"] == "path":
            continue
        name = parameter["name"] + ("*" if parameter.get("required") else "")
        schema = parameter["schema"]
        about = parameter.get("description") or schema.get("description") or ""
        lines.append(line(name, parameter["in"], schema, about))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = resolved(document, body.get("schema", {}))
    for name, member in schema.get("properties", {}).items():
        star = "*" if name in schema.get("required", ()) else ""
        lines.append(line(name + star, "body", member, member.get("description", "")))
    if not lines:
        return ""
    return HEAD + "".join(lines)


def line(name, place, schema, about):
    default = schema.get("default")
    shown = f"`{str(default).lower()}`" if default not in {None, "", False} else ""
    return f"| `{name}` | {place} | {kind(schema)} | {shown} | {first_line(about)} |\n"


def kind(schema):
    """The type in a word or two, with its bounds."""
    for options in (schema.get("anyOf"), schema.get("allOf")):
        if options:
            return " or ".join(kind(o) for o in options if o.get("type") != "null")
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        most = f", at most {schema['maxItems']}" if "maxItems" in schema else ""
        return f"list of {kind(schema.get('items', {}))}{most}"
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = f" {low} to {high}" if low is not None and high is not None else ""
    return f"{schema.get('type', 'any')}{bounds}"


def resolved(document, schema):
    """The object itself; a body that may be left out is one of two."""
    for option in schema.get("anyOf", ()):
        if "$ref" in option:
            schema = option
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema


def limits():
    options = ApiOptions()
    rows = (
        ("a body", f"{options.body_bytes_max:,} bytes, within {options.body_seconds:g} s"),
        ("a URL", f"{options.url_bytes_max:,} bytes"),
        ("headers", f"{options.headers_max}, of {options.header_bytes_max:,} bytes"),
        ("letters of one action", f"{options.bulk_max:,}"),
        ("requests at once", str(options.requests_max)),
        ("of these, on many letters", str(options.heavy_max)),
    )
    return LIMITS + "".join(f"| {what} | {most} |\n" for what, most in rows)


def first_line(text):
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
