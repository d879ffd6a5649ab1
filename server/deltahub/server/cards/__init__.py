"""Model cards: front matter, and what it declares."""
