"""All pages of administrators, in the order in which their routes are tried."""

from typing import Final

from deltahub.server.web.admin import actions, lists, overview, settings, store, users

MODULES: Final = (overview, store, settings, users, lists, actions)
