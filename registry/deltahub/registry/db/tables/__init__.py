"""Tables about the object store itself: where it lies, and what must not be deleted from it."""
