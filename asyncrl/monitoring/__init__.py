"""Reports of the roles, sums over them, and the typed records that observers get."""
