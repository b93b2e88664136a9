"""Fixtures of the pipeline's tests."""

from tests.pipeline.cli_fixtures import app

__all__ = ["app"]
