"""The page of the server in a real browser: text appears and sound plays while it comes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
from playwright.sync_api import expect

from tests.serve.deployments import ASSISTANT, TEXT, VOICE, Fake, Running, running, wait_until
from tests.serve.test_chat import wav
from tests.sweeps.browsers import find


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = find()
    if isinstance(found, str):
        pytest.skip(found)
    from playwright.sync_api import sync_playwright

    options = ["--no-sandbox", "--mute-audio", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=found, args=options)
        yield made
        made.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    slow = Fake(ASSISTANT, pause=0.05)
    with running({"assistant": slow, "text": Fake(TEXT), "voice": Fake(VOICE)}) as found:
        yield found


@pytest.fixture
def page(browser: Any, server: Running) -> Iterator[Any]:
    """The page; what its script or the browser's policy complains of fails the test."""
    context = browser.new_context(permissions=["microphone"])
    page = context.new_page()
    page.set_default_timeout(20_000)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.goto(server.url)
    page.wait_for_selector("html[data-ready]")
    yield page
    context.close()
    assert [fault for fault in faults if "400" not in fault] == []


def say(page: Any, text: str) -> Any:
    """Send it; the reply that will come."""
    page.fill("#prompt", text)
    page.click("#send")
    return page.locator(".turn.assistant").last


def ended(page: Any, how: str = "yes") -> None:
    expect(page.locator(".turn.assistant").last).to_have_attribute("data-done", how, timeout=20_000)


def test_text_appears_while_it_is_written(page: Any) -> None:
    page.uncheck("#speak")
    reply = say(page, "one two three four five six seven eight nine ten")
    expect(reply.locator(".said")).to_have_text(re.compile("one two"))
    assert reply.get_attribute("data-done") is None
    ended(page)
    assert reply.locator(".said").inner_text() == "one two three four five six seven eight nine ten"


def test_sound_plays_while_it_comes_and_the_stages_are_drawn(page: Any) -> None:
    reply = say(page, "one two three four five six seven eight nine ten")
    expect(reply).to_have_attribute("data-seconds", re.compile("0.[1-5]"))
    assert reply.get_attribute("data-done") is None
    ended(page)
    assert float(reply.get_attribute("data-seconds")) == pytest.approx(1.0, abs=0.01)
    assert reply.locator(".timeline .lane").count() == 2
    assert [text.split()[0] for text in reply.locator(".timeline span").all_inner_texts()] == ["thinker", "tts"]
    widths = reply.locator(".timeline .bar").evaluate_all(
        "bars => bars.map((bar) => bar.getBoundingClientRect().width)"
    )
    assert max(widths) > 20


def test_a_sound_file_is_heard_and_not_sent_again(page: Any, tmp_path: Path) -> None:
    page.uncheck("#speak")
    (tmp_path / "question.wav").write_bytes(wav(2))
    page.set_input_files("#file", tmp_path / "question.wav")
    assert page.inner_text("#attached") == "question.wav"
    page.click("#send")
    ended(page)
    assert page.locator(".turn.assistant .said").inner_text() == "2.0 seconds"
    assert page.locator(".turn.user .note").inner_text() == "question.wav: 2.0 seconds"
    with page.expect_request("**/v1/chat/completions") as sent:
        say(page, "again")
    assert "input_audio" not in sent.value.post_data
    ended(page)


def test_the_microphone(page: Any) -> None:
    page.uncheck("#speak")
    page.click("#record")
    page.wait_for_selector("#record[aria-pressed=true]")
    page.wait_for_timeout(700)
    page.click("#record")
    ended(page)
    assert "seconds" in page.locator(".turn.assistant .said").inner_text()


def test_stop_cancels_on_the_server(page: Any, server: Running) -> None:
    deployment: Any = server.house["assistant"].deployment
    say(page, " ".join(["word"] * 300))
    wait_until(lambda: deployment.held == 1)
    page.click("#stop")
    wait_until(lambda: deployment.held == 0)
    ended(page, "failed")


def test_settings_are_sent(page: Any) -> None:
    page.select_option("#voice", "Bob")
    page.fill("#temperature", "0.5")
    page.fill("#seed", "7")
    page.fill("#speed", "2")
    with page.expect_request("**/v1/chat/completions") as sent:
        reply = say(page, "seed")
    body = sent.value.post_data_json
    assert (body["temperature"], body["seed"], body["style"], body["audio"]["voice"]) == (0.5, 7, {"speed": 2}, "Bob")
    ended(page)
    assert reply.locator(".said").inner_text() == "7"


def test_what_the_server_refuses_is_told_in_its_words(page: Any) -> None:
    page.uncheck("#speak")
    say(page, "fail")
    ended(page, "failed")
    assert "prompt: got 'fail'" in page.inner_text("#fault")
    say(page, "one")
    ended(page)
    assert page.inner_text("#fault") == ""


def test_a_deployment_shows_what_it_can_do(page: Any) -> None:
    page.select_option("#model", "voice")
    expect(page.locator("#record")).to_be_disabled()
    reply = say(page, "one two")
    ended(page)
    assert float(reply.get_attribute("data-seconds")) == pytest.approx(0.2, abs=0.01)
    page.select_option("#model", "text")
    expect(page.locator("#voice")).to_be_disabled()
    expect(page.locator("#speak")).not_to_be_checked()


def test_a_key_is_asked_for_once(browser: Any) -> None:
    with running({"text": Fake(TEXT)}, keys=("right",)) as server:
        page = browser.new_page()
        page.on("dialog", lambda dialog: dialog.accept("right"))
        page.goto(server.url)
        page.wait_for_selector("html[data-ready]")
        say(page, "one")
        ended(page)
        page.close()
