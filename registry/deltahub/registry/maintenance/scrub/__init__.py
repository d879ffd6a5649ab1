"""scrub: reads and proves stored bytes over time, and repairs what it can."""
