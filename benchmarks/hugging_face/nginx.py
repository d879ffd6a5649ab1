"""nginx serving the same models to the same clients: what the hub is held against.

A static server cannot speak the API; what it says was recorded from a hub, and its files lie ready.
"""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.hub import HubFailed

_START_TIMEOUT_S = 20
_MAIN = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  {sending}
  default_type application/octet-stream;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    {locations}
    location / {{ return 404 '{{"error": "nothing"}}'; }}
  }}
}}
"""
_JSON = """
    location = {path} {{ default_type application/json; alias {file}; }}
"""
_FILE = """
    location = {path} {{
      etag off;
      add_header ETag '"{etag}"';
      add_header X-Repo-Commit {commit};
      alias {file};
    }}
"""


# Without sendfile, bytes go through a buffer of nginx's own, as those of every server do that makes
# them: files in pages of the system are handed over as they lie there.
_SENDFILE = "sendfile on;"
_COPYING = "sendfile off; output_buffers 1 1m;"


class Nginx:
    """One worker process on a free port of loopback, until the block ends."""

    def __init__(self, folder: Path, *, is_copying: bool = False) -> None:
        """is_copying: what it sends it reads into its memory first."""
        if any(char in str(folder) for char in " ;{}'\""):
            raise HubFailed(f"nginx cannot be told of {folder}: choose --scratch without spaces")
        self._folder = folder
        self._sending = _COPYING if is_copying else _SENDFILE
        self._locations: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "nginx is not started"
        return self._process.pid

    def add_model(self, hub_url: str, name: str, files: Mapping[str, Path]) -> None:
        """Records what a hub says of a model. files: path -> the same bytes on disk."""
        info = _get(f"{hub_url}/api/models/{name}")
        commit = info["sha"]
        tree = _get(f"{hub_url}/api/models/{name}/tree/{commit}?recursive=true")
        self._add_json(f"/api/models/{name}", info)
        for revision in ("main", commit):
            self._add_json(f"/api/models/{name}/revision/{revision}", info)
            self._add_json(f"/api/models/{name}/tree/{revision}", tree)
        for item in tree:
            if item["type"] == "file":
                etag = item["lfs"]["oid"] if "lfs" in item else item["oid"]
                for revision in ("main", commit):
                    self._locations.append(
                        _FILE.format(
                            path=f"/{name}/resolve/{revision}/{item['path']}",
                            etag=etag,
                            commit=commit,
                            file=files[item["path"]],
                        )
                    )

    def _add_json(self, path: str, answer: object) -> None:
        file = self._folder / f"answer-{len(self._locations)}.json"
        file.write_text(json.dumps(answer))
        self._locations.append(_JSON.format(path=path, file=file))

    def __enter__(self) -> "Nginx":
        program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
        if program is None:
            raise HubFailed("this comparison needs nginx: install it, for one with apt")
        config = self._folder / "nginx.conf"
        text = _MAIN.format(
            folder=self._folder,
            port=self._port,
            sending=self._sending,
            locations="".join(self._locations),
        )
        # Its workers would be another user, who may not read the models.
        config.write_text(("user root;" if os.geteuid() == 0 else "") + text)
        self._process = subprocess.Popen([program, "-c", str(config), "-p", str(self._folder)])
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return self
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise HubFailed(f"nginx did not start; see {self._folder}") from error
                time.sleep(0.05)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)


def _get(url: str) -> Any:
    """What the hub says, as JSON."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=60) as answer:
        return json.load(answer)
