"""A Hugging Face hub on loopback that takes repositories, LFS objects and commits as the hub's interface has them, and gives
them back to every client of it. For huggingface_hub with HF_ENDPOINT; only a bearer of `TOKEN` may write."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_of_the_test"
_LFS = (".safetensors", ".bin", ".arrow", ".parquet")


class FakeHub:
    """`repos` holds (kind, name) → path → content; `lfs` what came as LFS objects, by hash; `made` what repositories were made
    with; `asked` the names of the files that were downloaded."""

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], dict[str, bytes]] = {}
        self.lfs: dict[str, bytes] = {}
        self.made: dict[tuple[str, str], dict[str, Any]] = {}
        self.asked: list[str] = []

    def __enter__(self) -> "FakeHub":
        hub = self

        class Handler(_Handler):
            held = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def commit_of(self, repo: tuple[str, str]) -> str:
        """The head of a repository: a hash of what it holds."""
        return hashlib.sha1(repr(sorted(self.repos[repo].items())).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    held: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def _answer(self, status: int, value: Any = None, content: bytes | None = None, **headers: str) -> None:
        body = json.dumps(value).encode() if content is None else content
        self.send_response(status)
        for name, text in ({"Content-Type": "application/json"} | headers).items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_PUT(self) -> None:
        content = self._body()
        oid = self.path.rpartition("/")[2]
        if hashlib.sha256(content).hexdigest() != oid:
            self._answer(400, {"error": "the object is not what its hash says"})
            return
        self.held.lfs[oid] = content
        self._answer(200, {})

    def do_POST(self) -> None:
        body, path = self._body(), urlsplit(self.path).path
        if path == "/api/validate-yaml":
            self._validate(json.loads(body))
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, {"error": "Invalid username or password."})
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif match := re.fullmatch(r"/api/(model|dataset|space)s/([^/]+/[^/]+)/preupload/main", path):
            files = json.loads(body)["files"]
            modes = ["lfs" if file["path"].endswith(_LFS) or file["size"] > 10_000_000 else "regular" for file in files]
            told = [{"path": f["path"], "uploadMode": m, "shouldIgnore": False} for f, m in zip(files, modes, strict=True)]
            self._answer(200, {"files": told})
        elif path.endswith(".git/info/lfs/objects/batch"):
            url = self.held.url
            objects = [
                {**one, "actions": {"upload": {"href": f"{url}/lfs/{one['oid']}"}, "verify": {"href": f"{url}/lfs-verify"}}}
                for one in json.loads(body)["objects"]
            ]
            self._answer(200, {"transfer": "basic", "objects": objects})
        elif path == "/lfs-verify":
            held = json.loads(body)
            self._answer(200 if len(self.held.lfs.get(held["oid"], b"")) == held["size"] else 404, {})
        elif match := re.fullmatch(r"/api/(model|dataset|space)s/([^/]+/[^/]+)/commit/main", path):
            self._commit((match[1], match[2]), body)
        elif match := re.fullmatch(r"/api/(model|dataset|space)s/([^/]+/[^/]+)/paths-info/.*", path):
            held, asked = self.held.repos.get((match[1], match[2]), {}), json.loads(body)["paths"]
            self._answer(200, [_entry(name, held[name]) for name in asked if name in held])
        else:
            self._answer(404, {"error": f"no such address: {path}"})

    def _validate(self, asked: dict[str, Any]) -> None:
        try:
            head = yaml.safe_load(asked["content"].split("---")[1])
            wrong = [] if isinstance(head, dict) else ["no metadata"]
        except (yaml.YAMLError, IndexError) as error:
            wrong = [str(error)]
        self._answer(400 if wrong else 200, {"errors": [{"message": text} for text in wrong], "warnings": []})

    def _create(self, asked: dict[str, Any]) -> None:
        repo = (asked.get("type", "model"), f"{asked.get('organization') or 'me'}/{asked['name'].rpartition('/')[2]}")
        prefix = "" if repo[0] == "model" else f"{repo[0]}s/"
        known = repo in self.held.repos
        self.held.repos.setdefault(repo, {".gitattributes": b""})
        self.held.made.setdefault(repo, asked)
        self._answer(409 if known else 200, {"url": f"{self.held.url}/{prefix}{repo[1]}", "name": repo[1]})

    def _commit(self, repo: tuple[str, str], body: bytes) -> None:
        held = self.held.repos[repo]
        for line in map(json.loads, body.decode().splitlines()):
            value = line["value"]
            if line["key"] == "file":
                assert value["encoding"] == "base64"
                held[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                held[value["path"]] = self.held.lfs[value["oid"]]
        commit = self.held.commit_of(repo)
        url = f"{self.held.url}/{'' if repo[0] == 'model' else repo[0] + 's/'}{repo[1]}/commit/{commit}"
        self._answer(200, {"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/(?:(dataset|space)s/)?([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            repo = (match[1] or "model", match[2])
            self.held.asked += [match[3]] * (self.command == "GET")
            content = self.held.repos.get(repo, {}).get(match[3])
            if content is None:
                known: dict[str, Any] = {"X_Repo_Commit": self.held.commit_of(repo)} if repo in self.held.repos else {}
                self._answer(404, {"error": "not found"}, X_Error_Code="EntryNotFound" if known else "RepoNotFound", **known)
                return
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            kind = {"Content-Type": "application/octet-stream"}
            self._answer(200, None, content, ETag=etag, X_Repo_Commit=self.held.commit_of(repo), Accept_Ranges="bytes", **kind)
        elif match := re.fullmatch(r"/api/(model|dataset|space)s/([^/]+/[^/]+?)(?:/(revision|tree)/([^/]+)(?:/(.*))?)?", path):
            repo = (match[1], match[2])
            if repo not in self.held.repos:
                self._answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
                return
            if match[4] not in (None, "main", self.held.commit_of(repo)):
                self._answer(404, {"error": "Revision not found"}, X_Error_Code="RevisionNotFound")
                return
            held = self.held.repos[repo]
            if match[3] == "tree":
                below = f"{match[5]}/" if match[5] else ""
                self._answer(200, [_entry(name, content) for name, content in held.items() if name.startswith(below)])
                return
            private = self.held.made.get(repo, {}).get("visibility") == "private"
            names = [{"rfilename": name} for name in held]
            told: dict[str, Any] = {"id": repo[1], "sha": self.held.commit_of(repo), "siblings": names}
            told |= {"private": private, "tags": [], "downloads": 0, "likes": 0, "disabled": False, "gated": False}
            self._answer(200, told)
        else:
            self._answer(404, {"error": f"no such address: {path}"}, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET


def _entry(name: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
