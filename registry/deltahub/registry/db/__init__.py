"""Tables, sessions and the schema's version: the only place that speaks SQL's dialects."""
