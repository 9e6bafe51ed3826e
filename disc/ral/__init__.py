"""The runtime: loads artifacts and runs them. Needs NumPy only."""
