"""evervox: a speech server for the VoxCPM family that runs for weeks."""

__version__ = "0.1.0"

__all__ = ["__version__"]
