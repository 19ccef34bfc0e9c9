"""A client of one console over the small run, which the tests of this folder share: its tables take a second."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest_asyncio

from tests.console.served import client_of, small


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(await small()) as made:
        yield made
