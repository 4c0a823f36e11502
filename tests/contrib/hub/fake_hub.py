"""A Hugging Face Hub of this process: it answers the requests that the real client makes to push and to pull."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

Files = dict[str, bytes]


class FakeHub:
    """Repositories by name, each a list of commits, of which the last is `main`. What was asked is in `requests`."""

    def __init__(self) -> None:
        self.repos: dict[str, list[tuple[str, Files]]] = {}
        self.requests: list[tuple[str, str]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(hub.get(unquote(urlsplit(self.path).path).strip("/")))

            do_HEAD = do_GET  # noqa: N815

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.answer((200, {}, hub.post(unquote(urlsplit(self.path).path).strip("/"), body)))

            def answer(self, found: tuple[int, dict[str, str], bytes]) -> None:
                hub.requests.append((self.command, self.path))
                code, headers, body = found
                self.send_response(code)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def commit(self, repo: str, files: Files) -> str:
        """Adds a commit; returns its name."""
        commits = self.repos.setdefault(repo, [])
        name = hashlib.sha1(f"{repo} {len(commits)}".encode()).hexdigest()
        commits.append((name, files))
        return name

    def files(self, repo: str) -> Files:
        return self.repos[repo][-1][1]

    def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        parts = path.split("/")
        is_api = parts[:2] == ["api", "models"]
        repo = "/".join(parts[2:4] if is_api else parts[:2])
        action, *rest = parts[4:] if is_api else parts[2:]
        if repo not in self.repos:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        revision = rest[0]
        names = {**dict(self.repos[repo]), "main": self.files(repo)} if self.repos[repo] else {"main": {}}
        if revision not in names:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        files = names[revision]
        oid = self.repos[repo][-1][0] if revision == "main" and self.repos[repo] else revision
        if action == "revision":
            return 200, {}, json.dumps({"id": repo, "sha": oid, "siblings": []}).encode()
        if action == "tree":
            tree = [
                {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
                for name, body in files.items()
            ]
            return 200, {}, json.dumps(tree).encode()
        assert action == "resolve"
        body = files["/".join(rest[1:])]
        return 200, {"X-Repo-Commit": oid, "ETag": f'"{hashlib.sha1(body).hexdigest()}"'}, body

    def post(self, path: str, body: bytes) -> bytes:
        if path == "api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            self.repos.setdefault(repo, [])
            return json.dumps({"url": f"{self.url}/{repo}"}).encode()
        if path == "api/validate-yaml":
            return json.dumps({"errors": [], "warnings": []}).encode()
        *_, user, name, action, _ = path.split("/")
        repo = f"{user}/{name}"
        if action == "preupload":
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return json.dumps({"files": files}).encode()
        assert action == "commit"
        files = dict(self.files(repo)) if self.repos[repo] else {}
        for operation in map(json.loads, body.decode().splitlines()):
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
        oid = self.commit(repo, files)
        return json.dumps({"commitOid": oid, "commitUrl": f"{self.url}/{repo}/commit/{oid}"}).encode()


@contextmanager
def running_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that the client talks to, with its own cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    hub = FakeHub()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN", "hf_of_this_test")
    # Read from the environment when the client was imported, perhaps by another test.
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    try:
        yield hub
    finally:
        hub.close()
