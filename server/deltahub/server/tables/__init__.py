"""Lists for administrators as tables, which pages and the API show alike."""
