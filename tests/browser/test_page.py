"""The page at `/` as a person uses it: by pointer, by keyboard alone, narrow, dark and light."""

import json
import re
import time
from pathlib import Path

import pytest
from schemas import WEATHER

AUDIT = (Path(__file__).parent / "audit.js").read_text()
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()


def wait_until(page, condition, seconds=60):
    """As Page.wait_for_function(), which the page's policy forbids: it would evaluate text."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)


def test_answers_stream(chat):
    chat.page.evaluate(
        """() => {
          window.sizes = new Set();
          new MutationObserver(() => {
            const text = document.querySelector('.model .text');
            if (text) window.sizes.add(text.textContent.length);
          }).observe(document.getElementById('log'), { childList: true, subtree: true });
        }"""
    )
    chat.ask("Who are you?")
    assert "winnow-tiny" in chat.answer_text()
    assert chat.page.evaluate("window.sizes.size") > 3  # it grew on the page
    assert re.search(r"\d+ tokens · [\d.]+ tokens/s", chat.answer().inner_text())


def test_conversations_go_on(chat):
    chat.ask("My name is Oscar.")
    chat.ask("What is my name?")
    assert "Oscar" in chat.answer_text()
    chat.page.get_by_role("button", name="New chat").click()
    assert chat.page.get_by_role("article").count() == 0
    assert chat.page.get_by_text("Ask something").is_visible()


def test_stop_ends_the_request(chat, server):
    chat.set(Longest_answer="4000", System_message="Tell long stories.")
    # Holds the answer open whatever the model would say.
    chat.page.route(
        "**/v1/chat/completions",
        lambda route: route.continue_(
            post_data=route.request.post_data.replace(
                '"stream":true', '"stream":true,"ignore_eos":true'
            )
        ),
    )
    chat.input.fill("Tell me a story about a dog.")
    chat.input.press("Enter")
    wait_until(chat.page, "document.querySelector('.model')?.textContent.length > 30")
    assert server.metric("vllm:num_requests_running") >= 1
    chat.stop.click()
    chat.wait()
    assert "stopped" in chat.answer().inner_text()
    server.wait_metric("vllm:num_requests_running", 0)
    assert chat.input.evaluate("e => e === document.activeElement")
    chat.page.unroute("**/v1/chat/completions")
    chat.ask("Who are you?")  # what was said so far is part of the conversation
    assert chat.answer_text()


def test_thinking_is_folded(chat):
    chat.set(Thinking="enabled")
    chat.ask("What is 37 + 48?")
    fold = chat.answer().locator("details.thinking")
    assert fold.count() == 1
    assert not fold.evaluate("e => e.open")
    assert "85" in chat.answer_text()
    fold.get_by_text("Thinking").click()
    assert "carry" in fold.inner_text() or "8" in fold.inner_text()
    chat.set(Thinking="disabled")
    chat.ask("What is 21 + 34?")
    assert chat.answer().locator("details.thinking").count() == 0
    assert "55" in chat.answer_text()


def test_tool_calls_are_shown_and_answered(chat):
    chat.set(Tools=[WEATHER])
    chat.ask("What is the weather in Paris?")
    card = chat.page.get_by_role("region", name="Tool call get_weather")
    assert '"city": "Paris"' in card.inner_text()
    card.get_by_label("Result of get_weather").fill("sunny, 24 degrees")
    card.get_by_role("button", name="Send results").click()
    wait_until(chat.page, "document.querySelectorAll('.model').length === 2")
    chat.wait()
    assert "sunny" in chat.answer_text()


def test_bad_tools_are_told_in_the_settings(chat):
    chat.page.get_by_role("button", name="Settings").click()
    dialog = chat.page.get_by_role("dialog", name="Settings")
    dialog.get_by_label("Tools").fill("[{]")
    dialog.get_by_role("button", name="Done").click()
    assert dialog.get_by_role("alert").inner_text().startswith("Tools:")
    assert dialog.is_visible()


def test_errors_are_told(chat):
    chat.set(Longest_answer="99999999")
    chat.ask("Hi")
    assert "maximum context length" in chat.answer().get_by_role("alert").inner_text()


@pytest.fixture
def recorded(chat):
    """A question over a long text, and the picture of its last token."""
    chat.page.get_by_role("button", name="Find a fact").click()
    chat.wait()
    assert "4821" in chat.answer_text()
    chat.page.get_by_role("button", name="Kept blocks").click()
    return chat


def test_the_picture_is_what_the_api_says(recorded):
    page = recorded.page
    panel = page.get_by_role("complementary", name="What MSA kept")
    assert panel.is_visible()
    assert page.evaluate("document.activeElement.id") == "inspector-title"
    options = panel.get_by_role("option")
    assert options.count() > 5
    target = options.filter(has_text=re.compile("^4$")).first
    target.click()
    assert target.get_attribute("aria-selected") == "true"
    summary = panel.locator("#token-summary").inner_text()
    position = int(re.search(r"position (\d+)", summary)[1])
    num_blocks = -(-position // 128)
    assert f"each group read 4 of {num_blocks} blocks" in summary

    panel.get_by_text("As a table").click()
    rows = panel.locator("tbody tr")
    assert rows.count() == 8 * 2
    kept = [row.locator("td").last.inner_text() for row in rows.all()]
    blocks = [set(expand(text)) for text in kept]
    assert all(len(of_group) == 4 and num_blocks - 1 in of_group for of_group in blocks)

    # The block with the fact is kept where it is asked for, and its text is shown.
    counts = [sum(block in of_group for of_group in blocks) for block in range(num_blocks)]
    slider = panel.get_by_role("slider", name="Block")
    for block in range(num_blocks):
        slider.fill(str(block))
        assert f"kept by {counts[block]} of 16" in slider.get_attribute("aria-valuetext")
    slider.fill("0")
    wait_until(page, "document.getElementById('block-text').textContent.includes('river')")

    # The picture is painted, and not in one colour.
    assert (
        page.evaluate(
            """() => {
          const map = document.getElementById('map');
          const data = map.getContext('2d').getImageData(0, 0, map.width, map.height).data;
          const colors = new Set();
          for (let i = 0; i < data.length; i += 4) colors.add(data.slice(i, i + 4).join());
          return colors.size;
        }"""
        )
        > 5
    )


def expand(text):
    for part in text.split(", "):
        first, _, last = part.partition("–")
        yield from range(int(first), int(last or first) + 1)


def test_the_fact_is_found_by_the_groups(recorded, server):
    """Some group keeps the block that holds what was asked for, for the token that answers."""
    page = recorded.page
    panel = page.get_by_role("complementary", name="What MSA kept")
    panel.get_by_role("option").filter(has_text=re.compile("^4$")).first.click()
    text = panel.locator("#block-text")
    slider = panel.get_by_role("slider", name="Block")
    for block in range(int(slider.get_attribute("max")) - 1):
        slider.fill(str(block))
        summary = f"Block {block},"
        wait_until(
            page, f"document.getElementById('block-summary').innerText.startsWith('{summary}')"
        )
        page.wait_for_timeout(100)
        if "secret code" in text.inner_text():
            break
    else:
        raise AssertionError("the fact is in no block")
    assert not re.search("kept by 0 of", slider.get_attribute("aria-valuetext"))


def test_pointing_at_a_block_shows_its_text(recorded):
    page = recorded.page
    box = page.locator("#map").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    first = page.locator("#block-summary").inner_text()
    page.mouse.move(box["x"] + box["width"] - 60, box["y"] + 60)
    assert page.locator("#block-summary").inner_text() != first


def test_keyboard_alone(open_page):
    page = open_page()
    keys = page.keyboard
    active = "document.activeElement"
    page.evaluate("document.body.tabIndex = -1; document.body.focus()")  # as before autofocus
    keys.press("Tab")
    assert page.evaluate(active + ".className") == "skip"
    keys.press("Enter")
    assert page.evaluate(active + ".id") == "input"
    keys.type("What is 37 + 48?")
    keys.press("Enter")
    page.get_by_role("button", name="Kept blocks").wait_for()
    assert page.evaluate(active + ".id") == "input"
    for _ in range(8):
        keys.press("Shift+Tab")
        if page.evaluate(active + ".textContent") == "Kept blocks":
            break
    keys.press("Enter")
    assert page.evaluate(active + ".id") == "inspector-title"
    for _ in range(6):
        keys.press("Tab")
        if page.evaluate(active + ".id") == "tokens":
            break
    before = page.locator("#tokens [aria-selected=true]").get_attribute("id")
    keys.press("ArrowLeft")
    assert page.locator("#tokens [aria-selected=true]").get_attribute("id") != before
    keys.press("Home")
    assert page.locator("#tokens [aria-selected=true]").get_attribute("id") == "token-0"
    chosen = page.locator("#tokens").get_attribute("aria-activedescendant")
    assert chosen == "token-0"
    keys.press("Tab")
    assert page.evaluate(active + ".id") == "block"
    keys.press("Escape")
    assert page.evaluate(active + ".textContent") == "Kept blocks"
    assert page.locator("#inspector").is_hidden()
    # Settings open, keep the focus inside, and give it back.
    page.get_by_role("button", name="Settings").focus()
    keys.press("Enter")
    for _ in range(12):
        keys.press("Tab")
        assert page.evaluate("!!document.activeElement.closest('dialog, body')")
    keys.press("Escape")
    assert page.evaluate(active + ".id") == "open-settings"


def contrast(page, selector):
    """Of an element's text against what is behind it."""
    return page.evaluate(CONTRAST, selector)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_have_contrast(open_page, scheme):
    page = open_page(color_scheme=scheme)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.get_by_role("button", name="What is 37").click()
    page.get_by_role("button", name="Kept blocks").click()
    for selector in (
        "#model",
        "#meters dt",
        ".user .text",
        ".model .text p",
        ".turn h2",
        ".foot p",
        "#send",
        ".hint",
        "figcaption",
        "#block-summary",
        "#tokens [aria-selected=true]",
        "#tokens span",
        "details summary",
    ):
        assert contrast(page, selector) >= 4.5, selector


def test_the_switch_changes_the_scheme_and_is_kept(open_page):
    page = open_page(color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Use dark colours").click()
    assert page.evaluate(ground) != light
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_role("button", name="Use light colours").click()
    assert page.evaluate(ground) == light


def test_roles_and_names(recorded):
    """What an accessibility checker asks: names, labels, unique ids, one h1, no skipped level."""
    recorded.page.get_by_role("button", name="Settings").click()
    faults = recorded.page.evaluate(AUDIT)
    assert not faults, faults


def test_narrow_screens_do_not_scroll_sideways(open_page):
    page = open_page(viewport={"width": 360, "height": 680})
    page.get_by_role("button", name="What is 37").click()
    kept = page.get_by_role("button", name="Kept blocks")
    kept.wait_for()
    box = page.get_by_role("button", name="Send", exact=True).bounding_box()
    assert box["x"] + box["width"] <= 360 and box["y"] + box["height"] <= 680
    kept.click()
    assert page.locator("#map").bounding_box()["width"] <= 360
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("button", name="Close").click()
    assert page.evaluate("document.activeElement.textContent") == "Kept blocks"


def test_live_metrics_move(chat):
    rate = chat.page.locator("#meter-rate")
    wait_until(chat.page, "document.getElementById('meter-cache').innerText !== '–'")
    chat.ask("Tell me a story about a dog.")
    wait_until(chat.page, "parseFloat(document.getElementById('meter-rate').innerText) > 0")
    assert rate.is_visible()
    assert chat.page.locator("#meter-batch").inner_text().isdigit()


HOSTILE = """# Title

Some **bold**, *soft*, `code <b>`, ~~old~~ and [a link](https://example.com/a_(b)).
<img src=x onerror="window.broken = 1"> <script>window.broken = 1</script>
[bad](javascript:window.broken=1) [data](data:text/html,x) ![picture](https://example.com/p.png)

1. one
2. two
   - inner
   - snake_case_name and 2 * 3 * 4

> quoted
> more

| a | b |
|---|---|
| 1 | `2` |

```python
print("<i>hi</i>")
```
"""


def test_markdown_is_rendered_and_never_read_as_html(open_page):
    page = open_page()
    events = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"index": 0, "delta": {"content": HOSTILE}, "finish_reason": "stop"}]},
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    page.get_by_role("textbox", name="Message").fill("x")
    page.keyboard.press("Enter")
    text = page.locator(".model .text")
    text.locator("pre code").wait_for()
    assert text.locator("h3").inner_text() == "Title"
    assert text.locator("strong").inner_text() == "bold"
    assert text.locator("em").all_inner_texts() == ["soft"]
    assert text.locator("del").inner_text() == "old"
    assert text.locator("pre code").inner_text() == 'print("<i>hi</i>")'
    assert text.locator("ol > li").count() == 2
    assert text.locator("ol ul li").count() == 2
    assert text.locator("table th").all_inner_texts() == ["a", "b"]
    assert "quoted" in text.locator("blockquote").inner_text()
    links = [link.get_attribute("href") for link in text.locator("a").all()]
    assert links == ["https://example.com/a_(b)", "https://example.com/p.png"]
    assert all("noopener" in link.get_attribute("rel") for link in text.locator("a").all())
    assert text.locator("img, script").count() == 0
    assert "<img src=x" in text.inner_text()
    assert page.evaluate("window.broken") is None


def test_nothing_foreign_runs(server):
    head = server.get("/").headers["content-security-policy"]
    assert "unsafe" not in head
    assert "default-src 'none'" in head
    text = server.get("/").text
    outside = re.findall(
        r"""(?:src|href|url\(|import|fetch\()\s*[=('"]*\s*https?://[^'" ]+""", text
    )
    assert not outside, outside
