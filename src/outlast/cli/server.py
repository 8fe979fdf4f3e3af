"""`outlast serve` and `outlast tokens …`: the API as a process, and who may call it.

In: the shared options and those of the verb. Out: an exit status. A secret is printed once, where
it is made; lists show names and scopes only.
"""

import logging
from typing import Any

from outlast.cli.asking import Asked
from outlast.cli.frame import DONE, ended, run, settings_of, show
from outlast.cli.paper import print_grid, say, tell
from outlast.ops import Actor, BadRequest, Desk
from outlast.ops.tokens import TokenBook, new_token

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def serve_api(asked: Asked, *, no_auth: bool, **given: Any) -> int:
    """Until SIGTERM or Ctrl-C."""

    async def body(desk: Desk, _: Actor) -> int:
        try:
            from outlast.api.options import ApiOptions  # noqa: PLC0415 - an extra
            from outlast.api.serving import serve  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise BadRequest(
                f"outlast serve needs the package {error.name}", "pip install 'outlast[server]'"
            ) from None
        logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT)
        settings = settings_of(asked, **given)
        options = ApiOptions(
            no_auth=no_auth, origins=settings.origins, transforms=settings.transforms
        )
        return await serve(
            desk,
            TokenBook.parse(settings.tokens),
            host=settings.host,
            port=settings.port,
            prefix=settings.prefix,
            options=options,
        )

    return run(asked, body, loads_app=True)


def make_token(asked: Asked, name: str, scopes: str) -> int:
    """A new secret, and the line for the configuration."""

    def body() -> int:
        made = new_token(name, [scope for scope in scopes.replace(",", " ").split() if scope])
        if asked.json:
            show(made.as_json())
            return DONE
        say(made.secret)
        say(made.line)
        tell("The first line is the secret, for Authorization: Bearer. It is shown only now.")
        tell("The second belongs into OUTLAST_TOKENS, or into tokens of outlast.toml.")
        return DONE

    return ended(asked, body)


def list_tokens(asked: Asked) -> int:
    """Who has a token by the settings, and what for."""

    def body() -> int:
        entries = TokenBook.parse(settings_of(asked).tokens).entries
        if asked.json:
            show({"items": [entry.as_json() for entry in entries], "total": len(entries)})
        elif not entries:
            say("No tokens found.")
            tell("outlast tokens new --name N --scopes inspect,replay makes one")
        else:
            rows = [[entry.name, ", ".join(entry.scopes)] for entry in entries]
            print_grid(("Name", "Scopes"), rows, cut=())
        return DONE

    return ended(asked, body)
