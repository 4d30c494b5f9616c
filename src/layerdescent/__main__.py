"""`python -m layerdescent` is the command `layerdescent`."""

from layerdescent.cli import app

app()
