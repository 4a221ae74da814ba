"""A server of tiny models in the process of the test."""

from collections.abc import Iterator

import pytest
from served import new_client
from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """Two models, `tiny` and `other`, in one server."""
    with new_client("tiny", "other") as client:
        yield client
