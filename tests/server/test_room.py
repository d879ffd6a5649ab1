"""A server deletes cached hot bases when the disk becomes full."""

import asyncio
import shutil
from pathlib import Path

import pytest

from deltahub.registry.packs.base_cache import MIN_BLOCK_BYTES
from deltahub.server.process.serve import HubServer
from deltahub.server.settings import ServerSettings
from support.registry.opened import opened_registry


def test_hot_bases_go_while_nobody_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_registry(tmp_path) as reg:
        server = HubServer(reg, ServerSettings(hot_base_bytes=1 << 30))
        server.config.load()
        hot = server._hub.hot_bases
        real = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=2 << 30))
        for _ in range(2):
            hot.offer(("pack", 0), 0, [MIN_BLOCK_BYTES], memoryview(bytes(MIN_BLOCK_BYTES)))
        asyncio.run(look(server))
        assert hot.kept_bytes == MIN_BLOCK_BYTES
        monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=1 << 20))
        asyncio.run(look(server))
        assert hot.kept_bytes == 0


async def look(server: HubServer) -> None:
    """Run the ticks of six seconds."""
    for tick in range(60):
        assert not await server.on_tick(tick)
    for chore in server._chores:
        chore.wait()
