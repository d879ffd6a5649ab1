"""fsck: compares rows with objects, in both directions. Fixes nothing."""
