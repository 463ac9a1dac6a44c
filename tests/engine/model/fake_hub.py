"""A Hugging Face hub on loopback: as much of its API as fetching a model takes."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """Serves the files of ``folder`` as the model ``id`` at one commit, known as ``main`` and ``v1``."""

    folder: Path
    id: str = "acme/small"
    gated: bool = False
    cut: dict[str, int] = field(default_factory=dict)
    """By file, after how many bytes the connection breaks, once."""
    wrong_sha256: bool = False
    fetched: list[str] = field(default_factory=list)
    """Files whose content was asked for, with the range."""
    url: str = ""

    def files(self) -> list[dict]:
        return [self._describe(path) for path in sorted(self.folder.iterdir()) if path.is_file()]

    def _describe(self, path: Path) -> dict:
        content = path.read_bytes()
        facts = {"size": len(content), "oid": hashlib.sha1(content).hexdigest()}
        if path.suffix == ".safetensors":
            digest = "0" * 64 if self.wrong_sha256 else hashlib.sha256(content).hexdigest()
            facts["lfs"] = {"sha256": digest, "oid": digest, "size": len(content), "pointerSize": 130}
        return {"name": path.name} | facts


@contextmanager
def serving(hub: FakeHub):
    """The hub behind a free port of 127.0.0.1; sets ``hub.url``."""

    class Handler(_Handler):
        world = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world: FakeHub

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            self._api(found[1], found[2] or "revision", found[3] or "main")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[2], found[3], with_body)
        else:
            self._refuse(404, "")

    def _known(self, id: str, revision: str) -> bool:
        if id != self.world.id:
            self._refuse(404, "RepoNotFound")
        elif revision not in ("main", "v1", COMMIT):
            self._refuse(404, "RevisionNotFound")
        else:
            return True
        return False

    def _api(self, id: str, what: str, revision: str) -> None:
        if not self._known(id, revision):
            return
        files = self.world.files()
        if what == "tree":
            self._json([{"type": "file", "path": file["name"]} | _without(file, "name") for file in files])
            return
        siblings = [{"rfilename": f["name"], "blobId": f["oid"]} | _without(f, "name", "oid") for f in files]
        self._json(
            {"id": id, "modelId": id, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
        )

    def _file(self, id: str, revision: str, name: str, with_body: bool) -> None:
        if not self._known(id, revision):
            return
        if self.world.gated:
            self._refuse(403, "GatedRepo")
            return
        file = next((file for file in self.world.files() if file["name"] == name), None)
        if file is None:
            self._refuse(404, "EntryNotFound")
            return
        content = (self.world.folder / name).read_bytes()
        begin = 0
        if asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            begin = int(asked[1])
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{file["lfs"]["sha256"] if "lfs" in file else file["oid"]}"')
        self.send_header("Content-Length", str(len(content) - begin))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if with_body:
            self.world.fetched.append(name if begin == 0 else f"{name} from {begin}")
            self._send(content[begin:], self.world.cut.pop(name, None))

    def _send(self, content: bytes, cut: int | None) -> None:
        self.wfile.write(content[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, code: int, why: str) -> None:
        self.send_response(code)
        self.send_header("X-Error-Code", why)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def _without(facts: dict, *names: str) -> dict:
    return {name: value for name, value in facts.items() if name not in names}
