"""Which model was made from which: declared, measured, similar."""
