"""A judge behind any OpenAI-compatible chat endpoint.

The key comes from an environment variable, goes into one header, and nowhere else: it is in no result, no cache, no
error and no `repr`, and redirects, which would carry it to another address, are refused.
"""

import http.client
import json
import os
import queue
import random
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from layerdescent.errors import InputError, RunError
from layerdescent.winrate.judge import TEMPLATE, Question

KEY = "LAYERDESCENT_JUDGE_KEY"

_TEMPLATE = TEMPLATE + "Reply with one word and nothing else: A, B or tie."
_AGAIN = "That was no verdict. Reply with one word and nothing else: A, B or tie."
_PREFERENCES = {"a": 1.0, "b": 0.0, "tie": 0.5}
_VERDICT = re.compile(r"\W*(?:(?:the\s+)?(?:better\s+)?(?:answer|verdict)(?:\s+is)?\W*)?(a|b|tie)\W*", re.IGNORECASE)
_THOUGHTS = re.compile(r".*</think>", re.DOTALL)

_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})  # what a server says that is worth another try
_OF_THE_TEXT = frozenset({400, 413, 422})  # too long, or filtered: the next question may do
_MOST_REFUSALS = 4  # in a row from the start: then it is not the text
_TRIES_OF_NOTHING = 3

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a server is waited for, in seconds: one answer, and between tries 2^n times `first`, at most `most`."""

    timeout: float = 120.0
    tries: int = 7
    first: float = 1.0
    most: float = 60.0
    longest_retry_after: float = 600.0  # a server that asks for more is not waited for

    def delay(self, tried: int, retry_after: float | None) -> float:
        """Before the next try: exponential with a random part, and never less than the server asked for."""
        backoff = min(self.most, self.first * 2 ** (tried - 1)) * random.uniform(0.5, 1.0)
        return max(backoff, retry_after or 0.0)


class _RefusedError(Exception):
    """The server does not take this text."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """None: a redirect is an error with its status."""


@dataclass(kw_only=True)
class EndpointJudge:
    """Asks a chat model which answer is better, at temperature 0, several questions at a time.

    A reply that is no verdict is asked about once more, in the same conversation; then it counts as none.

    Args:
        model: The model's name there.
        base_url: Such as `https://host/v1`; `/chat/completions` is added.
        jobs: Requests at a time.
        patience: Timeouts and tries.
        key: For the header `Authorization`; by default what LAYERDESCENT_JUDGE_KEY holds, and no header without it.

    Raises:
        InputError: The address is none, or has a password or a query in it, which results would store; or the key
            cannot stand in a header.
    """

    model: str
    base_url: str
    jobs: int = 4
    patience: Patience = field(default_factory=Patience)
    key: str | None = field(default=None, repr=False)
    proxy: None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.base_url = self.base_url.rstrip("/")
        try:
            address = urlsplit(self.base_url)
            usable = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
        except ValueError:  # a port that is no number
            usable = False
        if not usable:
            raise InputError("the judge's address must be http://… or https://…, as in openai:MODEL@https://HOST/v1")
        if "@" in address.netloc or address.query or address.fragment:
            raise InputError(
                f"the address of judge {self.model} has a user, a query or a fragment, and addresses are stored with "
                f"results: give it without, and the key in the environment variable {KEY}"
            )
        self.key = (self.key if self.key is not None else os.environ.get(KEY, "")).strip()
        if not (self.key.isascii() and self.key.isprintable()):
            raise InputError(f"the key in {KEY} has characters that no key has; copy it again")
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._answered = False  # whether anything was ever there
        self._refusals: int | None = 0  # from the start; None once a question was taken

    @property
    def name(self) -> str:
        """As on the command line."""
        return f"openai:{self.model}@{self.base_url}"

    @property
    def basis(self) -> str:
        """The prompt."""
        return _TEMPLATE + _AGAIN

    def judge(self, questions: Sequence[Question]) -> Iterator[tuple[Question, float | None]]:
        """Yield every question with its verdict, as they come.

        Raises:
            RunError: The server refuses the request, or does not answer after all tries.
        """
        return _in_threads(self._preference, questions, self.jobs)

    def _preference(self, question: Question, stopped: threading.Event) -> float | None:
        prompt = _TEMPLATE.format(**question._asdict())
        messages = [{"role": "user", "content": prompt}]
        try:
            reply = self._reply(messages, stopped)
            preference = read_verdict(reply)
            if preference is None:
                if reply:
                    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": _AGAIN}]
                preference = read_verdict(self._reply(messages, stopped))
        except _RefusedError as error:
            if self._refusals is not None:
                self._refusals += 1
                if self._refusals >= _MOST_REFUSALS:
                    raise RunError(f"{self.name} refuses every question: {error}") from None
            return None
        return preference

    def _reply(self, messages: list[dict[str, str]], stopped: threading.Event) -> str:
        """The text of the reply; empty where it has none."""
        tried = 0
        while True:
            tried += 1
            wait: float | None = None
            try:
                answer = self._post({"model": self.model, "messages": messages, "temperature": 0})
                self._answered, self._refusals = True, None
                return answer
            except urllib.error.HTTPError as error:
                self._answered = True
                reason = self._reason(error)
                if error.code in _OF_THE_TEXT:
                    raise _RefusedError(reason) from None
                if error.code not in _PASSING:
                    hint = f"; the key is read from {KEY}" if error.code in (401, 403) else ""
                    raise RunError(f"{self.name} refuses the request: {reason}{hint}") from None
                wait = _retry_after(error.headers.get("Retry-After"))
            except (OSError, http.client.HTTPException) as error:  # no connection, a broken one, a timeout
                reason = self._without_key(str(getattr(error, "reason", error)) or type(error).__name__)
            if wait is not None and wait > self.patience.longest_retry_after:
                raise RunError(f"{self.name} asks to come back in {wait:.0f} s ({reason}): run the same command then")
            # An address where nothing ever was is misspelt, most likely.
            enough = self.patience.tries if self._answered else min(self.patience.tries, _TRIES_OF_NOTHING)
            if tried >= enough or stopped.wait(self.patience.delay(tried, wait)):
                raise RunError(
                    f"{self.name} does not answer, {tried} tries ({reason}); what was judged is kept, and the same "
                    "command goes on from there"
                )

    def _post(self, body: dict[str, Any]) -> str:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(
            f"{self.base_url}/chat/completions", data=json.dumps(body).encode(), headers=headers, method="POST"
        )
        with self._opener.open(request, timeout=self.patience.timeout) as response:
            content = response.read()
        try:
            text = json.loads(content)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):  # no chat completion, which is no verdict either
            return ""
        return text if isinstance(text, str) else ""

    def _reason(self, error: urllib.error.HTTPError) -> str:
        """Status and message of the server in one line, which may repeat what was sent to it."""
        try:
            content = error.read().decode("utf-8", errors="replace")
        except (OSError, http.client.HTTPException):
            content = ""
        try:
            message = str(json.loads(content)["error"]["message"])
        except (ValueError, LookupError, TypeError):
            message = content
        return self._without_key(f"HTTP {error.code} {error.reason}: {' '.join(message.split())}")[:300].rstrip(" :")

    def _without_key(self, text: str) -> str:
        return text.replace(self.key, "[key]") if self.key else text


def read_verdict(reply: str) -> float | None:
    r"""The preference for the first answer in a reply: its last line, once thoughts are left out.

    Example:
        >>> read_verdict("A"), read_verdict("**tie**."), read_verdict("Both are fine, but ...\n\nVerdict: B")
        (1.0, 0.5, 0.0)
        >>> read_verdict("<think>A is right</think>b"), read_verdict("A or B"), read_verdict("")
        (0.0, None, None)
    """
    said = _THOUGHTS.sub("", reply).strip()
    lines = [] if "<think>" in said else said.splitlines()  # thoughts that were cut short
    found = _VERDICT.fullmatch(lines[-1]) if lines else None
    return _PREFERENCES[found[1].lower()] if found else None


def _retry_after(value: str | None) -> float | None:
    """Seconds until the time that the header names, a number or a date; None where it names none."""
    if value is None:
        return None
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        return None


def _in_threads(
    work: Callable[[Item, threading.Event], Result], items: Sequence[Item], jobs: int
) -> Iterator[tuple[Item, Result]]:
    """Every item with its result, as they are done; the first error is raised when what is under way is done too.

    Daemon threads, unlike those of an executor: Ctrl-C need not wait for a server that does not answer.
    """
    todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Item, Result] | Exception | None] = queue.SimpleQueue()  # None: a thread ended
    stopped = threading.Event()
    for item in items:
        todo.put(item)

    def run() -> None:
        try:
            while not stopped.is_set():
                item = todo.get_nowait()
                done.put((item, work(item, stopped)))
        except queue.Empty:
            pass
        except Exception as error:  # raised where the results are read
            done.put(error)
        done.put(None)

    running = min(jobs, len(items))
    for _ in range(running):
        threading.Thread(target=run, daemon=True).start()
    failure: Exception | None = None
    try:
        while running:
            result = done.get()
            if result is None:
                running -= 1
            elif isinstance(result, Exception):
                failure = failure or result
                stopped.set()
            else:
                yield result
    finally:
        stopped.set()
    if failure is not None:
        raise failure
