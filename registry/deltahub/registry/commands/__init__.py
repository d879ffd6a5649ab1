"""The hub's own commands: user, gc, fsck, recompress, scrub."""
