"""What the services of Outrider share."""

__version__ = "0.1.0"
