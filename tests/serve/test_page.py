"""The web page: what its files are, and what a browser makes of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

from localreact import Agent, ScriptedEndpoint, Tool, tool
from localreact.endpoints.llama import LlamaEndpoint
from localreact.protocols import JsonProtocol
from localreact.serve import front
from localreact.serve.desk import Desk
from localreact.serve.settings import Settings
from localreact.serve.state import State
from localreact.tools.builtin import load_tools
from localreact.trace.reading import KINDS
from localreact.types import Finish, ToolCall
from tests.browser import Page, browsing, needs_browser
from tests.fakes import wait_until
from tests.serve.gate import Gate
from tests.serve.server import Server, running, serving
from tests.serve.test_runs import CALL, FINISH, ask

WRITE = JsonProtocol().write
FILES = {name: (front.FOLDER / name).read_text("utf-8") for name in front.FILES.values()}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
HOSTILE = (
    "</bdi><img src=x onerror=document.title='owned'><script>document.title='owned'</script>\u202e\x1b[2J"
)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def values(self, name: str) -> list[str]:
        return [str(attributes[name]) for _, attributes in self.found if name in attributes]


PAGE = Tags(FILES["index.html"])


# --- the files


def test_every_file_of_the_page_is_served_and_no_other() -> None:
    assert {path.name for path in front.FOLDER.iterdir()} == set(front.FILES.values())
    with serving(ScriptedEndpoint([])) as server:
        for path, name in front.FILES.items():
            answer = server.client.get(path)
            assert (answer.status_code, answer.text) == (200, FILES[name])
        for path in (
            "/page/",
            "/page/none.js",
            "/page/../front.py",
            "/page/%2e%2e%2ffront.py",
            "/index.html",
        ):
            assert server.client.get(path).status_code == 404


def test_the_policy_admits_nothing_from_elsewhere_and_nothing_inline() -> None:
    with serving(ScriptedEndpoint([])) as server:
        for path in front.FILES:
            headers = server.client.get(path).headers
            policy = dict(
                each.strip().split(" ", 1) for each in headers["content-security-policy"].split(";")
            )
            assert policy.pop("default-src") == "'none'"
            assert set(policy.values()) <= {"'self'", "'none'"}
            assert policy["frame-ancestors"] == "'none'"
            assert headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in headers


def test_the_page_names_no_place_outside() -> None:
    for name, text in FILES.items():
        links = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", text)) - {"http://www.w3.org/2000/svg"}
        assert not {link for link in links if "//" in link and not link.startswith("// ")}, name
        assert not re.search(r"@import|url\(", text), name
    for value in PAGE.values("src") + PAGE.values("href"):
        assert value.startswith(("/page/", "#")), value
    for text in SCRIPTS.values():
        for module in re.findall(r'\bfrom "([^"]+)"', text):
            assert module.removeprefix("./") in SCRIPTS


def test_no_script_makes_markup_of_text() -> None:
    for name, text in SCRIPTS.items():
        found = re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|srcdoc"
            r"|createContextualFragment|setHTML",
            text,
        )
        assert found is None, (name, found)
    assert not [name for _, attributes in PAGE.found for name in attributes if name.startswith("on")]
    assert not PAGE.values("style")


def test_ids_resolve() -> None:
    ids = PAGE.values("id")
    assert len(set(ids)) == len(ids)
    used = [each for text in SCRIPTS.values() for each in re.findall(r'byId\("([\w-]+)"\)', text)]
    assert used
    named = [
        value
        for attribute in ("for", "aria-labelledby", "aria-describedby")
        for value in PAGE.values(attribute)
    ]
    named += [value.removeprefix("#") for value in PAGE.values("href") if value.startswith("#")]
    assert set(used + named) <= set(ids)
    labelled = set(PAGE.values("for"))
    for tag, attributes in PAGE.found:
        if tag in ("input", "select", "textarea"):
            assert attributes["id"] in labelled


def test_the_scripts_know_every_event() -> None:
    handled = set(re.findall(r"^  on(\w+)\(", SCRIPTS["view.js"], re.MULTILINE))
    assert handled == set(KINDS)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_its_background(scheme: int) -> None:
    """By the contrast that WCAG 2 asks for (AA, 4.5 to 1)."""
    blocks = re.findall(r":root \{(.*?)\}", FILES["style.css"], re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme]))
    pairs = [(text, ground) for text in ("front", "faint", "good", "bad") for ground in ("back", "box")]
    pairs += [(each, f"{each}-back") for each in ("sampled", "forced", "runtime")]
    pairs += [("on-button", "button"), ("button", "back")]
    for text, ground in pairs:
        light, dark = sorted((_luminance(colours[text]), _luminance(colours[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


# --- in a browser

IDLE = "!document.querySelector('#go').disabled && document.querySelector('.run .good, .run .bad')"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """Whatever a test does, the page neither complains nor asks anybody but the server."""
    browser.open("about:blank")
    browser.complaints.clear()
    browser.requested.clear()
    browser.look(1200, 800)
    yield browser
    assert browser.complaints == []
    assert {re.sub(r"(//127\.0\.0\.1):\d+/.*", r"\1", url) for url in browser.requested} <= {
        "http://127.0.0.1",
        "about:blank",
    }


def start(page: Page, server: Server, hash_: str = "") -> None:
    page.open(f"{server.client.base_url}/{hash_}".replace("//#", "/#"))
    page.wait("document.querySelector('#layout')?.hidden === false")


def write_question(page: Page, text: str) -> None:
    page.evaluate("document.querySelector('#question').focus()")
    page.write(text)


def sticks_out(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


@needs_browser
def test_a_question_is_asked_and_its_run_watched_with_the_keyboard_alone(page: Page, gate: Gate) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[gate.tool]) as server:
        start(page, server)
        page.tab()  # past the link that skips to the runs
        page.tab()
        page.write("How many are left?")
        page.press("Enter", 13, modifiers=2)
        assert gate.entered.wait(20)
        page.wait("document.querySelector('.step')?.innerText.includes('is called')")
        said = page.text(".run")
        for wanted in ("How many are left?", "running", "I look it up.", 'stock {"sku":"A7"}'):
            assert wanted in said
        assert "3" not in page.text("pre.observation")
        gate.open.set()
        page.wait(IDLE)
        said = page.text(".run")
        for wanted in ("finished", "Observation", "I know it now.", "2 steps"):
            assert wanted in said
        assert page.text(".run > div .answer, .run .answer") == "3"
        page.wait("document.querySelector('#list .question')")
        assert page.text("#list .question") == "How many are left?"
        assert page.evaluate("location.hash").startswith("#runs=")


@needs_browser
def test_each_token_has_its_author_and_its_time(page: Page, tiny: LlamaEndpoint, stock: Tool) -> None:
    with serving(tiny, tools=[stock]) as server:
        run = ask(server, tool_choice="required", max_tokens=200, max_steps=2)
        start(page, server, f"#runs={run['id']}")
        page.wait("document.querySelector('.run .good, .run .bad')")
        first = "document.querySelector('.tokens')"
        page.evaluate(f"{first}.focus()")
        told = []
        for _ in range(12):
            page.press("ArrowRight", 39)
            told.append(page.text(".step:first-of-type .reading"))
        assert any(re.search(r"forced · \d+ tokens? · [\d.]+ m?s", each) for each in told)
        assert any(re.search(r"sampled · 1 token · [\d.]+ m?s", each) for each in told)
        whole = page.evaluate(f"[...{first}.childNodes].map(each => each.textContent).join('')")
        assert whole.startswith('{"thought": "')
        by = page.evaluate(f"[...{first}.childNodes].map(each => each.className)")
        assert by.count("by-sampled") + by.count("by-sampled here") > 3


@needs_browser
def test_held_and_free_are_compared_side_by_side(page: Page, tiny: LlamaEndpoint, stock: Tool) -> None:
    with serving(tiny, tools=[stock], max_tokens=60) as server:
        start(page, server)
        write_question(page, "How many?")
        page.evaluate("document.querySelector('#steps').value = 1")
        page.click("#both")
        page.wait("!document.querySelector('#difference').hidden", 60)
        rows = {line.split("\t")[0]: line.split("\t")[1:] for line in page.text("table").splitlines()}
        assert rows["held by"] == ["a grammar (lark)", "nothing"]
        assert len(rows["status"]) == 2
        left, right = page.evaluate(
            "[...document.querySelectorAll('.run')].map(e => e.getBoundingClientRect().x)"
        )
        assert left < right
        page.wait("document.querySelectorAll('#list li').length === 2")
        # The same two again, chosen among the past ones.
        page.evaluate("document.querySelector('#difference').hidden = true")
        page.click("#list li:nth-child(1) input")
        assert page.evaluate("document.querySelector('#compare').disabled")
        page.click("#list li:nth-child(2) input")
        page.click("#compare")
        page.wait("!document.querySelector('#difference').hidden")
        assert "nothing" in page.text("table")


@needs_browser
def test_a_past_run_is_opened_and_found_again_by_its_address(page: Page, stock: Tool) -> None:
    with serving(ScriptedEndpoint([CALL, "prose", FINISH]), tools=[stock]) as server:
        ask(server, "An old question")
    with serving(ScriptedEndpoint([]), tools=[stock]) as server:
        start(page, server)
        page.wait("document.querySelector('#list button')")
        page.click("#list button")
        page.wait("document.querySelector('.run .good')")
        said = page.text(".run")
        for wanted in ("An old question", "Not a turn", "I look it up.", "3 steps"):
            assert wanted in said
        page.evaluate("location.reload()")
        page.wait("document.querySelector('.run .good')")
        assert page.text(".run") == said


@needs_browser
def test_a_run_goes_on_while_another_is_looked_at(page: Page, gate: Gate) -> None:
    with serving(ScriptedEndpoint([FINISH, CALL, FINISH]), tools=[gate.tool]) as server:
        ask(server, "Before", evidence_gate=False)
        start(page, server)
        page.wait("document.querySelector('#list button')")
        write_question(page, "How many?")
        page.click("#go")
        assert gate.entered.wait(20)
        page.wait("document.querySelector('.step')?.innerText.includes('is called')")
        page.click("#list button")
        page.wait(IDLE)
        assert "Before" in page.text(".run h2")
        gate.open.set()
        wait_until(lambda: server.idle)
        page.click("#refresh")
        page.wait("document.querySelectorAll('#list li').length === 2")
        page.wait("document.querySelector('#list').innerText.match(/finished/g)?.length === 2")
        assert "Before" in page.text(".run h2")


@needs_browser
def test_the_run_of_an_agent_that_is_a_tool_is_a_link_away(page: Page, stock: Tool) -> None:
    clerk = Agent(ScriptedEndpoint([CALL, FINISH]), [stock]).as_tool("clerk", "Ask somebody in the store.")
    passed_on = WRITE(ToolCall("The clerk will know.", "clerk", {"question": "How many A7?"}))
    with serving(ScriptedEndpoint([passed_on, FINISH]), tools=[clerk]) as server:
        run = ask(server, "How many are left?")
        with server.client.stream("GET", f"/v1/runs/{run['id']}/events") as answer:
            assert "traces" not in answer.read().decode()  # no path of this machine
        start(page, server, f"#runs={run['id']}")
        page.wait("document.querySelector('.run a')")
        page.click(".run a")
        page.wait("document.querySelector('.run h2')?.innerText === 'How many A7?'")
        page.wait("document.querySelector('.run .good')")


@needs_browser
def test_a_run_is_stopped(page: Page, gate: Gate) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[gate.tool]) as server:
        start(page, server)
        write_question(page, "How many?")
        page.click("#go")
        assert gate.entered.wait(20)
        page.wait("document.querySelector('.run button')?.hidden === false")
        page.click(".run button")
        page.wait(IDLE)
        assert "cancelled" in page.text(".run")


@needs_browser
def test_hostile_text_stays_text(page: Page) -> None:
    @tool
    def stock(sku: str) -> str:
        """How many of an article are left."""
        return HOSTILE

    replies = [
        WRITE(ToolCall(HOSTILE, "stock", {"sku": HOSTILE})),
        f"{HOSTILE} is no turn",
        WRITE(Finish("So it is, then.", answer=HOSTILE)),
    ]
    with serving(ScriptedEndpoint(replies), tools=[stock]) as server:
        start(page, server)
        write_question(page, HOSTILE.replace("\x1b", ""))
        page.click("#go")
        page.wait(IDLE)
        assert page.evaluate("document.title") == "localreact"
        assert page.evaluate("document.images.length") == 0
        assert page.evaluate("document.querySelectorAll('main script').length") == 0
        said = page.evaluate("document.body.innerText")
        assert "\u202e" not in said
        assert "\\u202e" in said
        assert said.count("<script>") >= 6


@needs_browser
@pytest.mark.parametrize("width", [320, 390, 1200])
def test_nothing_sticks_out(page: Page, tiny: LlamaEndpoint, width: int) -> None:
    long = "Donaudampfschifffahrtsgesellschaft" * 8
    with serving(tiny, tools=load_tools(["calculator", "search"], None)) as server:
        ids = [ask(server, long, max_tokens=150, engine=engine)["id"] for engine in (None, "free")]
        page.look(width, 800)
        start(page, server, f"#runs={','.join(ids)}")
        page.wait("!document.querySelector('#difference').hidden")
        assert not sticks_out(page)
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        assert not sticks_out(page)


@needs_browser
def test_the_page_asks_for_the_key(browser: Page, stock: Tool) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[stock], api_key="sesame") as server:
        browser.look(1200, 800)
        browser.open(str(server.client.base_url))
        browser.wait("document.querySelector('#key-form')?.hidden === false")
        assert browser.evaluate("document.querySelector('#layout').hidden")
        browser.write("sesame")  # the field has the focus
        browser.press("Enter", 13, text="\r")
        browser.wait("document.querySelector('#layout').hidden === false")
        write_question(browser, "How many?")
        browser.click("#go")
        browser.wait(IDLE)
        assert "finished" in browser.text(".run")


@needs_browser
def test_where_there_are_no_runs_the_page_says_so(browser: Page) -> None:
    with serving(ScriptedEndpoint([])) as server:
        browser.open(str(server.client.base_url))
        browser.wait("document.querySelector('#notice')?.hidden === false")
        assert "localreact serve -T" in browser.text("#notice")


@needs_browser
def test_the_page_waits_for_the_model(browser: Page, stock: Tool) -> None:
    state = State(Settings(tools=[stock]))
    with running(state) as server:
        browser.open(str(server.client.base_url))
        browser.wait("document.querySelector('#notice')?.innerText.includes('loaded')")
        state.loaded = Desk(ScriptedEndpoint([]), state.settings, state.metrics)
        browser.wait("document.querySelector('#layout').hidden === false")
        assert browser.text("#notice") == ""
