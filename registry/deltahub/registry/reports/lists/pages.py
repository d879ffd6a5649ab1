"""What a caller asks of a list, and gets: for packages that know nothing of the database."""

from deltahub.registry.db.paging.keyset import MOST as MOST
from deltahub.registry.db.paging.keyset import Asked as Asked
from deltahub.registry.db.paging.keyset import Page as Page
