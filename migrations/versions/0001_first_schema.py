"""The first schema: names, files, tensors, packs, jobs, lineage, Xet uploads."""

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None

# SQLite generates ids only for columns of type INTEGER.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "audit_events",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("user_name", sa.String(length=96)),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("target", sa.String(length=300), nullable=False),
        sa.Column("detail", sa.JSON()),
        sa.PrimaryKeyConstraint("id", name="pk_audit_events"),
    )
    op.create_index("ix_audit_events_at", "audit_events", ["at"])

    op.create_table(
        "domains",
        sa.Column("id", ID, nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_domains"),
        sa.UniqueConstraint("key", name="uq_domains_key"),
    )
    op.create_table(
        "namespaces",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=96), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_namespaces"),
        sa.UniqueConstraint("name", name="uq_namespaces_name"),
    )
    op.create_table(
        "users",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=96), nullable=False),
        sa.Column("is_admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("name", name="uq_users_name"),
    )
    op.create_table(
        "landings",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("user_id", ID, nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("git_blob_id", sa.String(length=40)),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.Column("promised_until", MOMENT),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_landings_user_id_users", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_landings"),
        sa.UniqueConstraint("user_id", "sha256", name="uq_landings_user_id_sha256"),
    )
    op.create_table(
        "memberships",
        sa.Column("namespace_id", ID, nullable=False),
        sa.Column("user_id", ID, nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"],
            ["namespaces.id"],
            name="fk_memberships_namespace_id_namespaces",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_memberships_user_id_users", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("namespace_id", "user_id", name="pk_memberships"),
    )
    op.create_index("ix_memberships_user_id", "memberships", ["user_id"])

    op.create_table(
        "packs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("domain_id", ID, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.LargeBinary(length=32)),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("condemned_at", MOMENT),
        sa.ForeignKeyConstraint(["domain_id"], ["domains.id"], name="fk_packs_domain_id_domains"),
        sa.PrimaryKeyConstraint("id", name="pk_packs"),
    )
    op.create_index("ix_packs_state", "packs", ["state"])

    op.create_table(
        "repositories",
        sa.Column("id", ID, nullable=False),
        sa.Column("namespace_id", ID, nullable=False),
        sa.Column("name", sa.String(length=96), nullable=False),
        sa.Column("domain_id", ID, nullable=False),
        sa.Column("is_private", sa.Boolean(), nullable=False),
        sa.Column("role", sa.String(length=16)),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["domain_id"], ["domains.id"], name="fk_repositories_domain_id_domains"
        ),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name="fk_repositories_namespace_id_namespaces"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_repositories"),
        sa.UniqueConstraint("namespace_id", "name", name="uq_repositories_namespace_id_name"),
    )
    op.create_index("ix_repositories_newest", "repositories", ["namespace_id", "id"])

    op.create_table(
        "tensors",
        sa.Column("id", ID, nullable=False),
        sa.Column("domain_id", ID, nullable=False),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("is_foreign", sa.Boolean(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["domain_id"], ["domains.id"], name="fk_tensors_domain_id_domains"),
        sa.PrimaryKeyConstraint("id", name="pk_tensors"),
        sa.UniqueConstraint("domain_id", "hash", name="uq_tensors_domain_id_hash"),
    )
    op.create_index("ix_tensors_hash", "tensors", ["hash"])

    op.create_table(
        "tokens",
        sa.Column("id", ID, nullable=False),
        sa.Column("user_id", ID, nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("label", sa.String(length=200), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_tokens_user_id_users", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("hash", name="uq_tokens_hash"),
    )
    op.create_index("ix_tokens_user_id", "tokens", ["user_id"])

    op.create_table(
        "files",
        sa.Column("id", ID, nullable=False),
        sa.Column("domain_id", ID, nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("git_blob_id", sa.String(length=40)),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("landing_id", sa.String(length=32)),
        sa.Column("recipe_tensor_id", ID),
        sa.Column("kind", sa.String(length=16)),
        sa.Column("note", sa.Text()),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("ingested_at", MOMENT),
        sa.ForeignKeyConstraint(["domain_id"], ["domains.id"], name="fk_files_domain_id_domains"),
        sa.ForeignKeyConstraint(
            ["landing_id"], ["landings.id"], name="fk_files_landing_id_landings"
        ),
        sa.ForeignKeyConstraint(
            ["recipe_tensor_id"], ["tensors.id"], name="fk_files_recipe_tensor_id_tensors"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
        sa.UniqueConstraint("domain_id", "sha256", name="uq_files_domain_id_sha256"),
    )
    op.create_index("ix_files_landing_id", "files", ["landing_id"])
    op.create_index("ix_files_recipe_tensor_id", "files", ["recipe_tensor_id"])
    op.create_index("ix_files_sha256", "files", ["sha256"])

    op.create_table(
        "frames",
        sa.Column("tensor_id", ID, nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("pack_id", sa.String(length=32), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("codec", sa.Integer(), nullable=False),
        sa.Column("tried", sa.Integer(), nullable=False, server_default="0"),
        sa.ForeignKeyConstraint(["pack_id"], ["packs.id"], name="fk_frames_pack_id_packs"),
        sa.ForeignKeyConstraint(
            ["tensor_id"], ["tensors.id"], name="fk_frames_tensor_id_tensors", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tensor_id", "start", name="pk_frames"),
    )
    op.create_index("ix_frames_pack_id", "frames", ["pack_id"])

    op.create_table(
        "holds",
        sa.Column("id", ID, nullable=False),
        sa.Column("tensor_id", ID, nullable=False),
        sa.Column("user_id", ID),
        sa.Column("repository_id", ID),
        sa.Column("job_id", sa.String(length=32)),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.id"],
            name="fk_holds_repository_id_repositories",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["tensor_id"], ["tensors.id"], name="fk_holds_tensor_id_tensors"),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_holds_user_id_users", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_holds"),
    )
    op.create_index("ix_holds_expires_at", "holds", ["expires_at"])
    op.create_index("ix_holds_job_id", "holds", ["job_id"])
    op.create_index("ix_holds_repository_id", "holds", ["repository_id"])
    op.create_index("ix_holds_tensor_id", "holds", ["tensor_id"])

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("progress", sa.JSON()),
        sa.Column("result", sa.JSON()),
        sa.Column("error_code", sa.String(length=60)),
        sa.Column("error", sa.Text()),
        sa.Column("is_cancel_asked", sa.Boolean(), nullable=False),
        sa.Column("repository_id", ID),
        sa.Column("user_id", ID),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT),
        sa.Column("finished_at", MOMENT),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.id"],
            name="fk_jobs_repository_id_repositories",
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_jobs_user_id_users", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_newest", "jobs", ["created_at", "id"])
    op.create_index("ix_jobs_newest_of_user", "jobs", ["user_id", "created_at", "id"])
    op.create_index("ix_jobs_repository_id", "jobs", ["repository_id"])
    op.create_index("ix_jobs_state", "jobs", ["state"])

    op.create_table(
        "revisions",
        sa.Column("id", ID, nullable=False),
        sa.Column("repository_id", ID, nullable=False),
        sa.Column("commit", sa.String(length=40), nullable=False),
        sa.Column("parent_commit", sa.String(length=40)),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("author_id", ID),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("declared_base", sa.String(length=300)),
        sa.Column("declared_base_revision_id", ID),
        sa.Column("ingest_job_id", sa.String(length=32)),
        sa.ForeignKeyConstraint(
            ["author_id"], ["users.id"], name="fk_revisions_author_id_users", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["declared_base_revision_id"],
            ["revisions.id"],
            name="fk_revisions_declared_base_revision_id_revisions",
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.id"],
            name="fk_revisions_repository_id_repositories",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_revisions"),
        sa.UniqueConstraint("repository_id", "commit", name="uq_revisions_repository_id_commit"),
    )
    op.create_index("ix_revisions_declared_base", "revisions", ["declared_base"])
    op.create_index(
        "ix_revisions_declared_base_revision_id", "revisions", ["declared_base_revision_id"]
    )

    op.create_table(
        "sketches",
        sa.Column("tensor_id", ID, nullable=False),
        sa.Column("band", sa.Integer(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("shape_class", sa.String(length=64), nullable=False),
        sa.Column("positions", sa.LargeBinary()),
        sa.ForeignKeyConstraint(
            ["tensor_id"], ["tensors.id"], name="fk_sketches_tensor_id_tensors", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tensor_id", "band", name="pk_sketches"),
    )
    op.create_index("ix_sketches_lookup", "sketches", ["band", "value", "shape_class", "tensor_id"])

    op.create_table(
        "tensor_bases",
        sa.Column("tensor_id", ID, nullable=False),
        sa.Column("base_id", ID, nullable=False),
        sa.ForeignKeyConstraint(
            ["base_id"], ["tensors.id"], name="fk_tensor_bases_base_id_tensors"
        ),
        sa.ForeignKeyConstraint(
            ["tensor_id"],
            ["tensors.id"],
            name="fk_tensor_bases_tensor_id_tensors",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tensor_id", "base_id", name="pk_tensor_bases"),
    )
    op.create_index("ix_tensor_bases_base_id", "tensor_bases", ["base_id"])

    op.create_table(
        "entries",
        sa.Column("revision_id", ID, nullable=False),
        sa.Column("path", sa.String(length=1024), nullable=False),
        sa.Column("file_id", ID, nullable=False),
        sa.Column("mode", sa.String(length=8), nullable=False),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"], name="fk_entries_file_id_files"),
        sa.ForeignKeyConstraint(
            ["revision_id"],
            ["revisions.id"],
            name="fk_entries_revision_id_revisions",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("revision_id", "path", name="pk_entries"),
    )
    op.create_index("ix_entries_file_id", "entries", ["file_id"])

    op.create_table(
        "file_tensors",
        sa.Column("file_id", ID, nullable=False),
        sa.Column("tensor_id", ID, nullable=False),
        sa.ForeignKeyConstraint(
            ["file_id"], ["files.id"], name="fk_file_tensors_file_id_files", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["tensor_id"], ["tensors.id"], name="fk_file_tensors_tensor_id_tensors"
        ),
        sa.PrimaryKeyConstraint("file_id", "tensor_id", name="pk_file_tensors"),
    )
    op.create_index("ix_file_tensors_tensor_id", "file_tensors", ["tensor_id"])

    op.create_table(
        "lineage_edges",
        sa.Column("id", ID, nullable=False),
        sa.Column("child_id", ID, nullable=False),
        sa.Column("parent_id", ID, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("origin", sa.String(length=8), nullable=False),
        sa.Column("share", sa.Double()),
        sa.ForeignKeyConstraint(
            ["child_id"],
            ["revisions.id"],
            name="fk_lineage_edges_child_id_revisions",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["parent_id"],
            ["revisions.id"],
            name="fk_lineage_edges_parent_id_revisions",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_lineage_edges"),
        sa.UniqueConstraint(
            "child_id",
            "parent_id",
            "kind",
            "origin",
            name="uq_lineage_edges_child_id_parent_id_kind_origin",
        ),
    )
    op.create_index("ix_lineage_edges_parent_id", "lineage_edges", ["parent_id"])

    op.create_table(
        "refs",
        sa.Column("repository_id", ID, nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("name", sa.String(length=250), nullable=False),
        sa.Column("revision_id", ID, nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.id"],
            name="fk_refs_repository_id_repositories",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["revision_id"],
            ["revisions.id"],
            name="fk_refs_revision_id_revisions",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("repository_id", "kind", "name", name="pk_refs"),
    )
    op.create_index("ix_refs_revision_id", "refs", ["revision_id"])

    op.create_table(
        "xorbs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("repository_id", ID),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("chunks", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.id"],
            name="fk_xorbs_repository_id_repositories",
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_xorbs"),
    )
    op.create_index("ix_xorbs_lookup", "xorbs", ["repository_id", "hash"])

    op.create_table(
        "xet_ranges",
        sa.Column("id", ID, nullable=False),
        sa.Column("xorb", sa.LargeBinary(length=32), nullable=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("end", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("chunks", sa.LargeBinary(), nullable=False),
        sa.Column("head", sa.LargeBinary(length=32)),
        sa.Column("domain_id", ID),
        sa.PrimaryKeyConstraint("id", name="pk_xet_ranges"),
    )
    op.create_index("ix_xet_ranges_head", "xet_ranges", ["head"])
    op.create_index("ix_xet_ranges_lookup", "xet_ranges", ["xorb", "first"])
    op.create_index("ix_xet_ranges_sha256", "xet_ranges", ["sha256"])

    op.create_table(
        "xet_epochs",
        sa.Column("repository_id", ID, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.id"],
            name="fk_xet_epochs_repository_id_repositories",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("repository_id", name="pk_xet_epochs"),
    )
