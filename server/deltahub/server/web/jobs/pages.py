"""All pages about jobs, in the order in which their routes are tried."""

from typing import Final

from deltahub.server.web.jobs import asking, lists, one, reports

MODULES: Final = (lists, asking, one, reports)
