"""The page in a real browser: no console error, figures drawn, light and dark, on a desk and on a phone."""

import re
import shutil
import subprocess
from collections import Counter
from html import escape
from pathlib import Path

import pytest
from PIL import Image

from layerdescent.report.ink import ARMS

pytestmark = pytest.mark.chromium

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
]


def browse(page: Path, profile: Path, *flags: str) -> str:
    """Opens the page in a fresh profile; returns what the browser printed, after a look at its console."""
    if BROWSER is None:
        pytest.skip("needs the program chromium, which is not installed")
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout


def colours(picture: Path) -> Counter[tuple[int, ...]]:
    with Image.open(picture) as image:
        pixels = image.convert("RGB").tobytes()
    return Counter(zip(pixels[0::3], pixels[1::3], pixels[2::3], strict=True))


def rgb(ink: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(ink.removeprefix("#")))


def test_the_browser_builds_every_figure(full_page: Path, tmp_path: Path) -> None:
    dom = browse(full_page, tmp_path / "profile", "--dump-dom")
    figures = re.findall(r"<figure.*?</figure>", dom, flags=re.DOTALL)
    assert len(figures) == 4
    for figure in figures:
        assert figure.count("<svg") == 2
        assert figure.count("<path") > 20


def test_the_browser_shows_the_pictures(video_page: Path, tmp_path: Path) -> None:
    dom = browse(video_page, tmp_path / "profile", "--dump-dom")
    (figure,) = re.findall(r'<figure id="pictures".*?</figure>', dom, flags=re.DOTALL)
    assert figure.count("<svg") == 2
    assert figure.count("<image") == 2 * 2 * (2 + 3 + 6 + 6)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots_show_page_and_lines_in_the_scheme(
    full_page: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    picture = tmp_path / "page.png"
    dark = scheme == "dark"
    browse(
        full_page,
        tmp_path / "profile",
        f"--window-size={width},2600",
        f"--screenshot={picture}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
    )
    with Image.open(picture) as image:
        assert image.size == (width, 2600)
    found = colours(picture)
    # On a phone the box with the findings fills much of the first screens.
    assert rgb("#14171b" if dark else "#ffffff") in dict(found.most_common(2))
    assert found[rgb("#7fb2ff" if dark else ARMS[0])] > 300  # the line of the descent arm


@pytest.mark.parametrize("name", ["full_page", "video_page"])
def test_nothing_sticks_out_on_a_phone(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    # A window cannot be narrower than 500 pixels, a frame can; scripts of the frame stay forbidden, ours only measures.
    html = request.getfixturevalue(name).read_text(encoding="utf-8")
    frame = f'<iframe style="width: 390px; height: 844px; border: 0" srcdoc="{escape(html)}"></iframe>'
    script = "onload = () => document.title = 'width ' + frames[0].document.documentElement.scrollWidth"
    measured = tmp_path / "measured.html"
    measured.write_text(f"<!DOCTYPE html><title></title>{frame}<script>{script}</script>", encoding="utf-8")
    dom = browse(measured, tmp_path / "profile", "--dump-dom")
    assert "<title>width 390</title>" in dom, re.findall("<title>.*?</title>", dom)[:1]
