"""Runs the migrations on the connection that deltahub.registry.db.schema passes."""

from alembic import context

from deltahub.registry.db.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite cannot alter columns: later migrations rebuild the table.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
