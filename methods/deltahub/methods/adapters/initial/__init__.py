"""The factors that an adapter starts from, when they are made from the base's weights."""
