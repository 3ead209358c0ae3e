"""winnow-tiny behind its page, in the distribution's Chromium."""

import json
import shutil

import pytest
from live_server import ROOT, Server
from playwright.sync_api import sync_playwright

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def server():
    running = Server(ROOT / "models" / "winnow-tiny", "--max-num-seqs", "8")
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture(scope="module")  # Playwright's event loop must not run in the tests after these
def browser():
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    assert found, "no Chromium here; ./dev setup test installs it"
    with sync_playwright() as playwright:
        # A container has no namespaces for Chromium's own sandbox.
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser, server):
    """Opens the page; a test fails when it logs an error or asks another host for anything."""
    contexts, faults = [], []

    def run(path="/", **options):
        context = browser.new_context(
            **{"viewport": {"width": 1180, "height": 800}, "reduced_motion": "reduce", **options}
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        # A refused request is an answer like others, and Chromium's note about it no fault.
        page.on(
            "console",
            lambda m: m.type == "error" and "status of 400" not in m.text and faults.append(m.text),
        )
        page.on(
            "request",
            lambda request: (
                request.url.startswith((server.url, "data:"))
                or faults.append("asked for " + request.url)
            ),
        )
        page.goto(server.url + path)
        page.get_by_role("status").filter(has_text="winnow-tiny").wait_for()
        return page

    yield run
    for context in contexts:
        context.close()
    assert not faults, faults


class Chat:
    """What a person does with the page."""

    def __init__(self, page):
        self.page = page
        self.input = page.get_by_role("textbox", name="Message")
        self.send = page.get_by_role("button", name="Send", exact=True)
        self.stop = page.get_by_role("button", name="Stop", exact=True)

    def ask(self, text):
        answers = self.page.get_by_role("article", name="Model")
        before = answers.count()
        self.input.fill(text)
        self.input.press("Enter")
        answers.nth(before).wait_for()
        self.wait()

    def wait(self):
        self.send.wait_for()

    def set(self, **values):
        """Fields of the settings by the beginning of their labels."""
        self.page.get_by_role("button", name="Settings").click()
        dialog = self.page.get_by_role("dialog", name="Settings")
        for name, value in values.items():
            field = dialog.get_by_label(name.replace("_", " "))
            if name == "Thinking":
                field.select_option(value)
            else:
                field.fill(value if isinstance(value, str) else json.dumps(value))
        dialog.get_by_role("button", name="Done").click()
        dialog.wait_for(state="hidden")

    def answer(self):
        return self.page.get_by_role("article", name="Model").last

    def answer_text(self):
        return self.answer().locator(".text").inner_text()


@pytest.fixture
def chat(open_page):
    page = open_page()
    made = Chat(page)
    made.set(Temperature="0")
    return made
