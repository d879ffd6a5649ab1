"""Contents of users' files as pages show them: cards, texts, differences. All of it is untrusted."""
