"""Talks to a language server: one request after the other, over pipes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

SERVER = Path(sys.executable).parent / "basedpyright-langserver"


class LanguageServer:
    """Pyright as an editor runs it, for one project."""

    def __init__(self, project: Path) -> None:
        self._root = project.as_uri()
        self._count = 0
        self._process = subprocess.Popen(
            [SERVER, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> LanguageServer:
        folders = [{"uri": self._root, "name": "project"}]
        given = {"processId": None, "rootUri": self._root, "workspaceFolders": folders}
        self._ask("initialize", given | {"capabilities": {}})
        self._tell("initialized", {})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def completions(self, text: str) -> list[str]:
        """What an editor offers at the end of a program."""
        self._count += 1
        document = f"{self._root}/typed{self._count}.py"
        opened = {"uri": document, "languageId": "python", "version": 1, "text": text}
        self._tell("textDocument/didOpen", {"textDocument": opened})
        lines = text.split("\n")
        position = {"line": len(lines) - 1, "character": len(lines[-1])}
        answer = self._ask(
            "textDocument/completion", {"textDocument": {"uri": document}, "position": position}
        )
        return [item["label"] for item in answer["items"]]

    def _ask(self, method: str, given: dict[str, Any]) -> Any:
        self._count += 1
        asked = self._count
        self._send({"id": asked, "method": method, "params": given})
        while (message := self._receive()).get("id") != asked or "method" in message:
            if "id" in message:  # the server asks for settings: it has to do with the defaults
                items = message.get("params", {}).get("items", [None])
                self._send({"id": message["id"], "result": [None] * len(items)})
        return message["result"]

    def _tell(self, method: str, given: dict[str, Any]) -> None:
        self._send({"method": method, "params": given})

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps({"jsonrpc": "2.0"} | message).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        stream = self._process.stdout
        assert stream is not None
        length = 0
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return json.loads(stream.read(length))
