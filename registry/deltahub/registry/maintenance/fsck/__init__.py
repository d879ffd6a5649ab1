"""fsck: compares rows with objects, in both directions; --repair marks what is lost."""
