"""Models over trees, graphs, lists and decisions: from ordinary Python to batches of compiled blocks."""
