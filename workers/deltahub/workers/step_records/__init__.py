"""Records of finished steps, kept by DBOS: in a file of the data folder, or in PostgreSQL."""
