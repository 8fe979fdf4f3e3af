"""The desk over HTTP: an application to serve or to mount.

In: a desk and a book of tokens. Out: Protean's and Keymate's routes, and every verb of the desk.
"""

from outlast.api.app import make_app
from outlast.api.options import ApiOptions

__all__ = ["ApiOptions", "make_app"]
