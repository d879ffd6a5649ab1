"""Clients that reach the hub through nginx with TLS, set up as the documents say."""

from pathlib import Path
from random import Random

import pytest

from clients.conftest import PART_BYTES, World
from clients.machine import Machine, hashes
from support.service.tls_proxy import NGINX, tls_proxy

THERE_AND_BACK = """
from huggingface_hub import HfApi, snapshot_download
HfApi().create_repo(name)
HfApi().upload_folder(repo_id=name, folder_path=folder)
result = snapshot_download(name, force_download=True)
"""


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
@pytest.mark.parametrize(
    "uploader", ["hub-0.36", "hub-1.4", "newest", "newest-by-lfs"], indirect=True
)
def test_files_go_there_and_back(
    uploader: Machine, world: World, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_bytes(b'{"a": 1}')
    (folder / "model.safetensors").write_bytes(Random(name).randbytes(3 * PART_BYTES + 1))
    with tls_proxy(world.hub.address, tmp_path / "nginx") as proxy:
        trust = {"SSL_CERT_FILE": proxy.certificate, "REQUESTS_CA_BUNDLE": proxy.certificate}
        settings = {**uploader.settings, **{key: str(path) for key, path in trust.items()}}
        there = uploader.another(endpoint=proxy.url, settings=settings)
        got = hashes(there.run(THERE_AND_BACK, name=name, folder=folder))
    got.pop(".gitattributes")
    assert got == hashes(folder) == world.hashes(name)
