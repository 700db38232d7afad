"""Fixtures of the contract suites."""

from tests.contract.storage_world import open_world  # noqa: F401  a fixture
