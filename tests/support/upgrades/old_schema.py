"""The schema of a release without kits and upgrades, for tests of hubs that come from there."""

from typing import Final

# What versions 0011b and those after it brought, as SQL that takes it away.
WITHOUT_KITS_AND_UPGRADES: Final = (
    "DROP TABLE old_names",
    "DROP INDEX ix_namespaces_lower_name",
    "DROP INDEX ix_repositories_lower_name",
    "DROP TABLE pooled_inputs",
    "DROP TABLE adapter_kit_parts",
    "DROP TABLE adapter_kits",
    "DROP TABLE upgrade_rules",
    "DROP TABLE upgraded_adapters",
    "DROP TABLE upgrades",
    "UPDATE alembic_version SET version_num = '0011a'",
)
