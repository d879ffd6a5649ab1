"""Model cards: their front matter, and the bases, tags and facts that they declare."""
