"""Contents of users' files as pages show them: cards, texts and differences, none trusted."""
