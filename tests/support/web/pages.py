"""All pages of a hub: each has a name, an address in the hub of the tests, and a picture."""

from typing import Final

# Name of the picture -> address. For everybody, and for the administrator.
PUBLIC: Final = {
    "home": "/",
    "search": "/?q=haiku",
    "nothing-found": "/?q=nothing-has-this-name",
    "namespace": "/admin",
    "model": "/admin/haiku",
    "merged-model": "/admin/poems",
    "files": "/admin/haiku/tree/main",
    "text": "/admin/haiku/blob/main/README.md",
    "weights": "/admin/haiku/blob/main/model.safetensors",
    "commits": "/admin/haiku/commits/main",
    "refs": "/admin/poems/refs",
    "tensors": "/admin/haiku/tensors/main",
    "lineage": "/admin/base/lineage",
    "use": "/admin/haiku/use",
    "compare": "/admin/haiku/compare",
    "tensor": "/admin/haiku/compare?tensor=model.1.up.weight",
    "report": "/-/reports/admin/poems",
    "login": "/-/login",
}
OF_ADMIN: Final = {
    "new": "/-/new",
    "upload": "/-/upload/admin/haiku",
    "compare-form": "/admin/base/compare?base=admin/haiku&with=admin/sonnet",
    "adapter": "/admin/next-letter/adapter",
    "model-settings": "/admin/haiku/settings",
    "profile": "/-/settings",
    "password": "/-/settings/password",
    "sessions": "/-/settings/sessions",
    "tokens": "/-/settings/tokens",
    "organizations": "/-/settings/organizations",
    "organization": "/-/settings/organizations/lyrics",
    "usage": "/-/settings/storage",
    "jobs": "/-/jobs",
    "job-kinds": "/-/jobs/new",
    "new-merge": "/-/jobs/new/merge?base=admin/base",
    "new-comparison": "/-/jobs/new/compare",
    "new-kit": "/-/jobs/new/pissa_init?base=admin/letters",
    "new-full-model": "/-/jobs/new/merge_adapter?adapter=admin/next-letter",
    "new-conversion": "/-/jobs/new/convert_adapter?adapter=admin/next-letter",
    "new-extraction": "/-/jobs/new/extract_adapter?model=admin/haiku",
    "admin-overview": "/-/admin",
    "admin-jobs": "/-/admin/jobs",
    "admin-storage": "/-/admin/storage",
    "admin-quotas": "/-/admin/storage/namespaces",
    "admin-packs": "/-/admin/storage/packs",
    "admin-damage": "/-/admin/storage/findings",
    "admin-dropped": "/-/admin/storage/dropped",
    "admin-users": "/-/admin/access/users",
    "admin-organizations": "/-/admin/access/organizations",
    "admin-tokens": "/-/admin/access/tokens",
    "admin-sessions": "/-/admin/access/sessions",
    "admin-audit": "/-/admin/access/audit",
    "admin-settings": "/-/admin/settings",
}
# Pages that a test finds by a link. Their addresses here are those of any such page.
LINKED: Final = {
    "commit": "/admin/haiku/commit/0123456789ab",
    "estimate": "/-/jobs/0123456789ab",
    "job": "/-/jobs/0123456789ab",
    "conversion": "/-/jobs/0123456789ab",
    "invitation": "/-/invitation/0123456789ab",
}
EVERY: Final = PUBLIC | OF_ADMIN | LINKED
