"""The pages about upgrades of bases."""
