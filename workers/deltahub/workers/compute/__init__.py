"""Steps that compute, in a process of their own with a limit on its memory."""
