"""The judge behind an endpoint, against a server on this machine: what it sends, and what it makes of bad answers."""

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from layerdescent.errors import InputError, RunError
from layerdescent.winrate import Question, choose_judge, head_to_head
from layerdescent.winrate.contest import RESULTS, VERDICTS
from layerdescent.winrate.endpoint import KEY, EndpointJudge, Patience, read_verdict
from tests.winrate.server import Reply, serve
from tests.winrate.test_contest import answers

SECRET = "sk-very-secret-0123456789"
QUICK = Patience(timeout=5.0, tries=4, first=0.01, most=0.05)
QUESTIONS = [Question(f"Prompt {number}?", f"first {number}", f"second {number}") for number in range(6)]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)


def judge(url: str, jobs: int = 2, patience: Patience = QUICK) -> EndpointJudge:
    return EndpointJudge(model="m@1", base_url=url, jobs=jobs, patience=patience)


def always(reply: Reply) -> Callable[[int, dict[str, Any]], Reply]:
    return lambda number, body: reply


def ask(url: str, count: int = 6, **settings: Any) -> dict[Question, float | None]:
    return dict(judge(url, **settings).judge(QUESTIONS[:count]))


def prompt_number(body: dict[str, Any]) -> int:
    found = re.search(r"Prompt (\d)", body["messages"][0]["content"])
    assert found is not None
    return int(found[1])


def test_every_question_gets_its_own_verdict() -> None:
    words = ["A", "B", "tie", "**A**", "I thought about it.\n\nVerdict: B", "<think>A or B?</think>\ntie."]
    with serve(lambda _, body: Reply(words[prompt_number(body)])) as got:
        found = ask(got.url)
    assert [found[question] for question in QUESTIONS] == [1.0, 0.0, 0.5, 1.0, 0.0, 0.5]
    assert len(got.bodies) == 6
    assert set(got.paths) == {"/v1/chat/completions"}
    assert {headers["Authorization"] for headers in got.headers} == {f"Bearer {SECRET}"}
    body = next(body for body in got.bodies if prompt_number(body) == 3)
    assert (body["model"], body["temperature"]) == ("m@1", 0)
    shown = body["messages"][0]["content"]
    assert shown.index("Prompt 3?") < shown.index("first 3") < shown.index("second 3")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_passes_is_tried_again(status: int) -> None:
    with serve(lambda number, _: Reply(status=status) if number < 3 else Reply("B")) as got:
        assert ask(got.url, 1) == {QUESTIONS[0]: 0.0}
    assert len(got.bodies) == 4
    gaps = [after - before for before, after in zip(got.times, got.times[1:], strict=False)]
    assert gaps[0] >= 0.005
    assert gaps[2] >= 0.02  # at least half of 0.01 * 2^2


def test_delays_double_up_to_a_limit_with_a_random_part() -> None:
    patience = Patience(first=1.0, most=10.0)
    for tried, full in ((1, 1.0), (2, 2.0), (4, 8.0), (5, 10.0), (60, 10.0)):
        delays = {patience.delay(tried, None) for _ in range(20)}
        assert len(delays) > 1
        assert all(full / 2 <= delay <= full for delay in delays)
    assert patience.delay(1, 7.5) == 7.5
    assert patience.delay(5, 0.0) >= 5.0


@pytest.mark.parametrize("as_date", [False, True])
def test_retry_after_is_honoured(as_date: bool) -> None:
    def reply(number: int, _: Any) -> Reply:
        later = datetime.now(UTC) + timedelta(seconds=2)  # dates have no fractions of a second
        value = format_datetime(later, usegmt=True) if as_date else "0.6"
        return Reply(status=429, headers={"Retry-After": value}) if number == 0 else Reply()

    with serve(reply) as got:
        ask(got.url, 1)
    assert got.times[1] - got.times[0] >= (0.9 if as_date else 0.6)


def test_a_server_that_asks_for_too_long_is_not_waited_for() -> None:
    with (
        serve(always(Reply(status=429, headers={"Retry-After": "3600"}))) as got,
        pytest.raises(RunError, match="asks to come back in 3600 s"),
    ):
        ask(got.url, 1)
    assert len(got.bodies) == 1


def test_slow_answers_are_given_up_and_asked_for_again() -> None:
    patience = Patience(timeout=0.2, tries=3, first=0.01)
    with serve(lambda number, _: Reply("A", seconds=1.0 if number == 0 else 0.0)) as got:
        assert ask(got.url, 1, patience=patience) == {QUESTIONS[0]: 1.0}
    assert len(got.bodies) == 2
    with (
        serve(always(Reply(seconds=1.0))) as got,
        pytest.raises(RunError, match=r"does not answer, 3 tries \(timed out\); what was judged is kept"),
    ):
        ask(got.url, 1, patience=patience)


def test_a_server_that_keeps_failing_is_one_line() -> None:
    body = json.dumps({"error": {"message": f"overloaded,\n your key is {SECRET}"}})
    with (
        serve(always(Reply(status=503, body=body))) as got,
        pytest.raises(RunError, match=r"4 tries \(HTTP 503 .*: overloaded, your key is \[key\]\)") as caught,
    ):
        ask(got.url, 1)
    assert SECRET not in str(caught.value)
    assert len(got.bodies) == 4


def test_nothing_at_the_address_is_told_soon() -> None:
    with serve(always(Reply())) as got:
        url = got.url
    with pytest.raises(RunError, match=r"does not answer, 3 tries \(.*refused"):
        ask(url, 1)


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_stops_at_once_and_names_where_it_comes_from(status: int) -> None:
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {SECRET}"}})
    with (
        serve(always(Reply(status=status, body=body))) as got,
        pytest.raises(RunError, match=rf"HTTP {status} .*\[key\]; the key is read from {KEY}") as caught,
    ):
        ask(got.url, 6, jobs=1)
    assert SECRET not in str(caught.value)
    assert len(got.bodies) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_refused_so_that_the_key_stays_here(status: int) -> None:
    with (
        serve(always(Reply())) as elsewhere,
        serve(always(Reply(status=status, headers={"Location": elsewhere.url}))) as got,
        pytest.raises(RunError, match=f"HTTP {status}"),
    ):
        ask(got.url, 1)
    assert elsewhere.bodies == []


NONSENSE = [
    Reply("Both answers are lovely."),
    Reply("A or B"),
    Reply(""),
    Reply(None),
    Reply(body="<html>busy</html>"),
    Reply(body='{"choices": []}'),
    Reply(body='{"choices": [{"message": {"content": ["A"]}}]}'),
]


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_no_verdict_is_asked_about_once_more_and_then_none(nonsense: Reply) -> None:
    with serve(lambda number, _: nonsense if number == 0 else Reply("B")) as got:
        assert ask(got.url, 1) == {QUESTIONS[0]: 0.0}
    assert len(got.bodies) == 2
    if nonsense.body is None and nonsense.text:
        roles = [message["role"] for message in got.bodies[1]["messages"]]
        assert roles == ["user", "assistant", "user"]
        assert got.bodies[1]["messages"][1]["content"] == nonsense.text
    with serve(always(nonsense)) as got:
        assert ask(got.url, 1) == {QUESTIONS[0]: None}
    assert len(got.bodies) == 2


def test_a_text_that_the_server_does_not_take_has_no_verdict() -> None:
    def reply(_: int, body: dict[str, Any]) -> Reply:
        return Reply(status=400, body='{"error": {"message": "too long"}}') if prompt_number(body) == 2 else Reply()

    with serve(reply) as got:
        found = ask(got.url)
    assert [found[question] for question in QUESTIONS] == [1.0, 1.0, None, 1.0, 1.0, 1.0]
    assert len(got.bodies) == 6


def test_a_server_that_takes_no_text_is_an_error() -> None:
    with (
        serve(always(Reply(status=400, body='{"error": {"message": "unknown field temperature"}}'))) as got,
        pytest.raises(RunError, match=r"refuses every question: HTTP 400 .*: unknown field temperature"),
    ):
        ask(got.url, jobs=1)
    assert len(got.bodies) == 4


def test_requests_run_side_by_side_but_no_more_than_allowed() -> None:
    with serve(always(Reply(seconds=0.1))) as got:
        ask(got.url, jobs=3)
    assert got.most_at_a_time == 3


def test_an_error_loses_no_verdict_that_is_under_way() -> None:
    def reply(_: int, body: dict[str, Any]) -> Reply:
        return Reply(status=401) if prompt_number(body) == 0 else Reply(seconds=0.3)

    found: list[tuple[Question, float | None]] = []
    with serve(reply) as got, pytest.raises(RunError, match="401"):
        found.extend(judge(got.url, jobs=3).judge(QUESTIONS))
    assert sorted(question for question, _ in found) == QUESTIONS[1:3]


def test_who_stops_listening_stops_the_asking() -> None:
    with serve(always(Reply(seconds=0.02))) as got:
        verdicts = judge(got.url, jobs=1).judge(QUESTIONS * 10)
        next(verdicts)
        verdicts.close()  # type: ignore[attr-defined]  # as an interruption does
        time.sleep(0.2)
        asked = len(got.bodies)
        assert asked <= 4
        time.sleep(0.1)
        assert len(got.bodies) == asked


def test_the_key_is_in_no_file_output_or_repr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a, b = answers("a", p="one", q="two", r="three"), answers("b", p="uno", q="due", r="tre")
    with serve(lambda number, _: Reply(status=500, body=SECRET) if number == 0 else Reply("A")) as got:
        asked = judge(got.url)
        results = head_to_head(a, b, asked, tmp_path, command="layerdescent winrate")
    assert results["judge"] == f"openai:m@1@{got.url}"
    assert {path.name for path in tmp_path.iterdir()} == {RESULTS, VERDICTS}
    assert all(SECRET not in path.read_text() for path in tmp_path.iterdir())
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err + repr(asked) + json.dumps(results)
    assert asked.key == SECRET


def test_a_run_that_the_server_broke_goes_on(tmp_path: Path) -> None:
    a, b = answers("a", p="one", q="two", r="three"), answers("b", p="uno", q="due", r="tre")
    with serve(lambda number, _: Reply("A") if number < 4 else Reply(status=401)) as got:
        url = got.url
        with pytest.raises(RunError, match="401"):
            head_to_head(a, b, judge(url, jobs=1), tmp_path, progress=False)
    assert len((tmp_path / VERDICTS).read_text().splitlines()) == 4

    with serve(always(Reply("A")), port=int(url.split(":")[2].removesuffix("/v1"))) as again:
        results = head_to_head(a, b, judge(url, jobs=1), tmp_path, progress=False)
    assert len(again.bodies) == 2
    assert results["win_rate"]["value"] == 0.5  # "A" whatever the order
    assert results["order_inconsistency"] == 1.0


def test_without_a_key_no_header_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY)
    with serve(always(Reply())) as got:
        ask(got.url, 1)
    assert "Authorization" not in got.headers[0]


@pytest.mark.parametrize("bad", ["sk-\nX-Other: 1", "sk-ключ"])
def test_a_key_that_no_header_takes_is_refused_unseen(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv(KEY, bad)
    with pytest.raises(InputError, match=f"the key in {KEY} has characters") as caught:
        judge("http://127.0.0.1/v1")
    assert bad not in str(caught.value)


def test_a_key_may_end_in_a_line_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET + "\n")
    assert judge("http://127.0.0.1/v1").key == SECRET


@pytest.mark.parametrize(
    "url", [f"http://user:{SECRET}@host/v1", f"https://host/v1?key={SECRET}", f"https://host/v1#{SECRET}"]
)
def test_an_address_with_a_secret_in_it_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="addresses are stored with results") as caught:
        choose_judge(f"openai:m@{url}", dict)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["https://", "http://host:port/v1", "ftp://host/v1"])
def test_no_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="must be http"):
        judge(url)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("a", 1.0),
        (" B.\n", 0.0),
        ("TIE", 0.5),
        ("[[B]]", 0.0),
        ("The better answer is A.", 1.0),
        ("Answer: **B**", 0.0),
        ("B is too long.\nA", 1.0),
        ("A\nbecause it is right", None),
        ("Answer", None),
        ("AB", None),
        ("a tie", None),
        ("C", None),
        ("<think>Is it\nA", None),
    ],
)
def test_what_counts_as_a_verdict(reply: str, verdict: float | None) -> None:
    assert read_verdict(reply) == verdict
