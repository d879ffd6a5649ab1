"""Pages for people: models, accounts, and what administrators see, as HTML made on the server."""
