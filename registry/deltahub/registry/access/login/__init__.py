"""How people log in with a browser: sessions, and what proves who somebody is."""
