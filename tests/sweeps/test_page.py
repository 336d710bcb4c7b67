"""The page of a sweep, looked at in a real browser: it sorts, filters, plots, compares and plays."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.io.picture import MELS
from framework.sweeps import images
from framework.sweeps.collect import collect
from framework.sweeps.page import save_page
from tests.sweeps.browsers import find
from tests.sweeps.folders import entry, job, spoken

WORDS = (
    "the sea is calm today",
    "the sea is very calm",
    "a storm is near",
    "no no no no no",
    "<b>bold</b> & </script>",
)
QUESTION = 'Say "hello" & <i>more</i>'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = find()
    if isinstance(found, str):
        pytest.skip(found)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=found, args=["--no-sandbox", "--mute-audio"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six points of two requests with speech; the last could not run."""
    folder = tmp_path_factory.mktemp("sweep")
    number = 0
    for temperature in (0.2, 0.7, 1.0):
        for speed in (0.9, 1.1):
            place = folder / str(number)
            given = ["deployment=x", f"sampling.temperature={temperature}", f"style.speed={speed}"]
            if number == 5:
                fault = {"where": "style.speed", "got": "1.1", "expected": "a slower one", "hint": ""}
                job(place, overrides=given, status="error", error=[fault])
            else:
                entries = [spoken(place, index, WORDS[number], seconds=1 + number) for index in (0, 1)]
                entries[0]["messages"] = [{"role": "user", "content": QUESTION}]
                timings = {"load_s": 0.0, "run_s": 1.0 + number, "wall_s": 2.0 + number}
                job(place, *entries, overrides=given, timings=timings)
            number += 1
    heard = {f"{n}/{index}": WORDS[n].replace("calm", "come") for n in range(5) for index in (0, 1)}
    (folder / "transcripts.json").write_text(json.dumps({"deployment": "asr", "said": heard}))
    save_page(collect(folder), folder / "index.html")
    return folder


@pytest.fixture
def page(browser: Any, sweep: Path) -> Iterator[Any]:
    yield from opened(browser, sweep / "index.html")


def opened(browser: Any, path: Path, **options: Any) -> Iterator[Any]:
    """The page from disk; whatever its script complains of, and whatever it asks of a network, fails the test."""
    context = browser.new_context(viewport={"width": 1300, "height": 900}, **options)
    page = context.new_page()
    page.set_default_timeout(30_000)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: faults.append(request.url) if request.url.startswith("http") else None)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    yield page
    context.close()
    assert faults == []


def column(page: Any, key: str) -> list[str]:
    found: list[str] = page.locator(f'#table tbody td[data-key="{key}"]').all_inner_texts()
    return found


# --- the table -----------------------------------------------------------------------------------------------------


def test_it_shows_every_point(page: Any) -> None:
    assert page.title() == "x · temperature × speed"
    assert column(page, "name") == ["0", "1", "2", "3", "4", "5"]
    assert column(page, "sampling.temperature") == ["0.2", "0.2", "0.7", "0.7", "1", "1"]
    assert column(page, "status") == ["ok"] * 5 + ["error"]
    assert "6 points" in page.inner_text("#summary")
    assert "deployment" in page.inner_text("#fixed")


def test_a_heading_sorts_up_then_down_then_not_at_all(page: Any) -> None:
    heading = page.locator('th[data-key="run_s"]')
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column(page, "run_s") == ["1", "2", "3", "4", "5", "–"]
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert column(page, "run_s") == ["5", "4", "3", "2", "1", "–"], "what has no value stands last either way"
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "none"


def test_sorting_with_the_keyboard(page: Any) -> None:
    page.locator('th[data-key="audio_s"] button').focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert column(page, "audio_s")[:2] == ["10", "8"]


@pytest.mark.parametrize(
    ("key", "text", "left"),
    [
        ("run_s", "> 2", ["2", "3", "4"]),
        ("run_s", "<=2", ["0", "1"]),
        ("run_s", "2..4", ["1", "2", "3"]),
        ("style.speed", "=1.1", ["1", "3", "5"]),
        ("status", "err", ["5"]),
        ("finish", "sequence", ["0", "1", "2", "3", "4"]),
        ("run_s", "> 99", []),
    ],
)
def test_a_column_filters(key: str, text: str, left: list[str], page: Any) -> None:
    page.fill(f'[data-filter="{key}"]', text)
    assert column(page, "name") == left
    assert page.inner_text("#count") == f"{len(left)} of 6"
    page.click("#clear")
    assert page.inner_text("#count") == "6 of 6"


def test_search_finds_words_of_the_replies(page: Any) -> None:
    page.fill("#search", "storm near")
    assert column(page, "name") == ["2"]


def test_a_row_for_each_request(page: Any) -> None:
    page.click("#by-request")
    assert page.inner_text("#count") == "10 of 10"
    assert column(page, "request") == ["0", "1"] * 5
    page.fill('[data-filter="repeated_words"]', "> 0")
    assert column(page, "reply") == [WORDS[3]] * 2


# --- the plot ------------------------------------------------------------------------------------------------------


def test_any_metric_over_any_parameter(page: Any) -> None:
    page.select_option("#plot-y", "run_s")
    page.select_option("#plot-x", "sampling.temperature")
    page.select_option("#plot-by", "style.speed")
    dots = page.locator("#plot .dot")
    assert dots.count() == 5
    assert page.locator("#plot .cross").count() == 1, "the point that could not run"
    assert page.locator("#plot .mean").count() == 2
    heights = [float(dots.nth(n).get_attribute("cy")) for n in range(5)]
    by_point = {int(dots.nth(n).get_attribute("data-point")): heights[n] for n in range(5)}
    assert by_point[0] > by_point[1] > by_point[2] > by_point[3] > by_point[4], "more stands higher"
    page.select_option("#plot-x", "style.speed")
    assert len({dots.nth(n).get_attribute("cx") for n in range(5)}) == 2
    for metric in page.locator("#plot-y option").evaluate_all("options => options.map((option) => option.value)"):
        page.select_option("#plot-y", metric)
        assert "NaN" not in page.inner_html("#plot")


def test_a_dot_puts_its_point_side_by_side(page: Any) -> None:
    dot = page.locator('#plot .dot[data-point="4"]').first
    dot.focus()
    assert "temperature 1" in page.inner_text("#tip")
    page.keyboard.press("Enter")
    assert page.locator('.card[data-point="4"]').count() == 1


# --- side by side --------------------------------------------------------------------------------------------------


def test_differences_from_the_first_are_marked(page: Any) -> None:
    cards = page.locator(".card")
    assert [cards.nth(n).get_attribute("data-point") for n in range(cards.count())] == ["0", "1", "2"]
    assert page.locator(".card").nth(0).locator(".reply ins").count() == 0
    assert page.locator(".card").nth(1).locator(".reply ins").all_inner_texts() == ["very"]
    page.uncheck("#differences")
    assert page.locator(".reply ins").count() == 0


def test_what_was_heard_wrongly_is_marked(page: Any) -> None:
    heard = page.locator(".card").nth(0).locator(".heard")
    assert (heard.locator("del").all_inner_texts(), heard.locator("ins").all_inner_texts()) == (["calm"], ["come"])


def test_the_request_is_chosen_for_all_points(page: Any) -> None:
    assert page.inner_text("#prompt") == QUESTION
    page.click("#next")
    assert page.inner_text("#prompt") == "question 1"
    assert page.locator(".card .player").first.inner_text().startswith("▶\naudio_req1.wav")


def test_a_point_that_could_not_run_says_why(page: Any) -> None:
    page.locator('tr[data-id="5"] input').check()
    assert "style.speed: got 1.1, expected a slower one" in page.locator('.card[data-point="5"]').inner_text()


def test_text_is_never_markup(page: Any) -> None:
    page.locator('tr[data-id="4"] input').check()
    assert page.locator('.card[data-point="4"] .reply').inner_text() == WORDS[4]
    assert page.locator(".card b:text('bold')").count() == 0


# --- sound ---------------------------------------------------------------------------------------------------------


def wait_for(page: Any, card: int, condition: str) -> None:
    """Until this holds of a card's `audio`, `button` and `time`, all looked at in one moment."""
    page.wait_for_function(
        f"""() => {{
          const card = document.querySelectorAll(".card")[{card}], time = card.querySelector(".time").textContent;
          const [audio, button] = [card.querySelector("audio"), card.querySelector(".play").getAttribute("aria-label")];
          return audio !== null && {condition};
        }}"""
    )


def test_it_plays_one_sound_at_a_time(page: Any) -> None:
    for point in (3, 4):  # the longest: none ends by itself while this looks
        page.locator(f'tr[data-id="{point}"] input').check()
    buttons = page.locator(".card .play")
    buttons.nth(3).click()
    wait_for(page, 3, "audio.currentTime > 0.1 && button === 'Pause'")
    buttons.nth(4).click()
    wait_for(page, 4, r"audio.currentTime > 0.1 && /^0:0(0\.[1-9]|[1-4]\.\d) \/ 0:05\.0$/.test(time)")
    wait_for(page, 3, "audio.paused && audio.currentTime < 4 && button === 'Play'")
    buttons.nth(4).click()
    wait_for(page, 4, "audio.paused && audio.currentTime < 5 && button === 'Play'")


def test_the_sound_in_the_page_is_the_sound_of_the_file(page: Any, sweep: Path) -> None:
    page.locator(".card .play").nth(0).click()
    decoded = page.evaluate(
        """async () => {
          const audio = document.querySelector(".card audio");
          const content = await (await fetch(audio.src)).arrayBuffer();
          const sound = await new OfflineAudioContext(1, 1, 8000).decodeAudioData(content);
          return [...sound.getChannelData(0).slice(0, 400)];
        }"""
    )
    import soundfile

    samples, _ = soundfile.read(sweep / "0" / "audio" / "audio_req0.wav", dtype="float32")
    np.testing.assert_allclose(decoded, samples[:400], atol=1e-4)


def test_the_waveform_is_a_slider(page: Any) -> None:
    slider = page.locator(".card").nth(2).locator("[role=slider]")
    box = slider.bounding_box()
    slider.click(position={"x": box["width"] / 2, "y": 20})
    page.wait_for_function("document.querySelectorAll('.card')[2].querySelector('audio').currentTime > 1.4")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("document.querySelectorAll('.card')[2].querySelector('audio').currentTime < 1.1")
    assert slider.locator("path.played").get_attribute("d").startswith("M0,")
    assert slider.locator("img").evaluate("image => [image.naturalWidth > 10, image.naturalHeight]") == [True, MELS]


def test_much_sound_stays_in_files_that_play_too(browser: Any, sweep: Path, tmp_path: Path) -> None:
    save_page(collect(sweep), sweep / "light.html", embed_mb=0)
    assert (sweep / "light.html").stat().st_size < (sweep / "index.html").stat().st_size
    for page in opened(browser, sweep / "light.html"):
        assert "in files beside this page" in page.inner_text("footer")
        page.locator(".card .play").nth(0).click()
        page.wait_for_function("document.querySelector('.card audio').currentTime > 0.1")


# --- the rest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(scheme: str, browser: Any, sweep: Path) -> None:
    def brightness() -> float:
        color: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return float(np.mean([int(part) for part in re.findall(r"\d+", color)[:3]]))

    for page in opened(browser, sweep / "index.html", color_scheme=scheme):
        assert (brightness() > 128) == (scheme == "light")
        page.click("#theme")
        assert (brightness() > 128) == (scheme == "dark")


def test_frames_of_a_video(browser: Any, tmp_path: Path) -> None:
    video = np.zeros((8, 20, 30, 3), np.uint8)
    video[:, :, :, 0] = np.arange(8)[:, None, None] * 30
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "video_req0.rgb").write_bytes(video.tobytes())
    shape = {"video_frames": 8, "video_height": 20, "video_width": 30}
    shutil.rmtree(tmp_path / "0" / ".hydra", ignore_errors=True)
    job(tmp_path / "0", entry(video_file=str(tmp_path / "0" / "video_req0.rgb"), **shape))
    save_page(collect(tmp_path), tmp_path / "index.html")
    for page in opened(browser, tmp_path / "index.html"):
        sizes = page.locator(".strip img").evaluate_all(
            "all => all.map((one) => [one.naturalWidth, one.naturalHeight])"
        )
        assert sizes == [[30, 20]] * 6


def test_a_page_of_200_cells_opens_within_two_seconds(browser: Any, tmp_path: Path) -> None:
    sound = spoken(tmp_path / "sound", 0, "one two three " * 20, seconds=4)
    for number in range(20):
        cells = [{**sound, "request_idx": index} for index in range(10)]
        job(tmp_path / "sweep" / str(number), *cells, overrides=[f"sampling.seed={number}"])
    save_page(collect(tmp_path / "sweep"), tmp_path / "sweep" / "index.html")
    seconds: list[float] = []
    while min(seconds, default=9.0) >= 2 and len(seconds) < 20:  # others use this machine too
        begin = time.perf_counter()
        for page in opened(browser, tmp_path / "sweep" / "index.html"):
            seconds.append(time.perf_counter() - begin)
            page.click("#by-request")
            assert page.locator("#table tbody tr").count() == 200
    assert min(seconds) < 2


# --- pictures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 3)])
def test_png(shape: tuple[int, ...], tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    (tmp_path / "a.png").write_bytes(images.png(pixels))
    np.testing.assert_array_equal(np.asarray(image.open(tmp_path / "a.png")), pixels)


def test_a_waveform_is_the_lowest_and_highest_of_equal_pieces() -> None:
    samples = np.concatenate([np.full(images.COLUMNS * 5, 0.25), np.full(images.COLUMNS * 5, -1.0)])
    pairs = np.array(images.waveform(samples)).reshape(-1, 2)
    assert len(pairs) == images.COLUMNS
    assert pairs[0].tolist() == [25, 25]
    assert pairs[-1].tolist() == [-100, -100]
    assert images.waveform(np.zeros(0)) == []
