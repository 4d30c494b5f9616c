"""A chat endpoint on this machine that answers, fails and dawdles as a test says."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What the server does with one request."""

    text: str | None = "A"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None  # instead of a chat completion with `text`
    seconds: float = 0.0


@dataclass
class Requests:
    """What the server got."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    most_at_a_time: int = 0


@contextmanager
def serve(reply: Callable[[int, dict[str, Any]], Reply], port: int = 0) -> Iterator[Requests]:
    """Run a server whose n-th request, from 0, with that body, gets `reply(n, body)`; on any port by default."""
    lock = threading.Lock()
    running = 0

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal running
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(got.bodies)
                got.bodies.append(body)
                got.headers.append(dict(self.headers))
                got.paths.append(self.path)
                got.times.append(time.monotonic())
                running += 1
                got.most_at_a_time = max(got.most_at_a_time, running)
            answer = reply(number, body)
            time.sleep(answer.seconds)
            with lock:
                running -= 1
            message = {"choices": [{"message": {"role": "assistant", "content": answer.text}}]}
            content = (json.dumps(message) if answer.body is None else answer.body).encode()
            try:
                self.send_response(answer.status)
                for name, value in {**answer.headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                pass  # the client had waited long enough

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    got = Requests(url=f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
