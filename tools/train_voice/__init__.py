"""Makes the small voice that ships with evervox: see README.md."""
