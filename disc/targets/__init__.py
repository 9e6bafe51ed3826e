"""What code is generated for."""
