"""A person at the console, in real Chromium: run as a process of its own, because Playwright is not for Trio.

``python -m tests.web.browse URL JOB WIDTH`` walks through the console and prints one line a step; it fails with the
step's own message. Every page must be free of script errors, policy violations and sideways scrolling.
"""

from __future__ import annotations

import os
import sys

from playwright.sync_api import Page, expect, sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
WAIT_MS = 15_000
NARROW = 600
PASSWORD = "correct horse battery staple"  # as in support.py, which must not be imported: its asyncio bridge is not for Playwright


def main(url: str, job: str, width: int) -> None:
    faults: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", headless=True, args=FLAGS)
        context = browser.new_context(ignore_https_errors=True, viewport={"width": width, "height": 740}, base_url=url)
        context.set_default_timeout(WAIT_MS)
        expect.set_options(timeout=WAIT_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"script error: {error}"))
        page.on("console", lambda line: _note(faults, line.text))
        for step in (
            sign_in,
            create_fleet,
            change_fleet,
            name_hardware,
            mint,
            see_nodes,
            follow_log,
            choose_log,
            stop_job,
            manage_users,
            manage_projects,
            read_audit,
            lose_connection,
            sign_out,
        ):
            if step is lose_connection and width < NARROW:
                continue  # a matter of the script, not of the width, and half a minute long
            step(page, job)
            _check_width(page)
            assert not faults, faults
            print("done:", step.__name__, flush=True)
        browser.close()


def _note(faults: list[str], text: str) -> None:
    """Answers that a page handles, and lines that were cut on purpose, are logged by the browser too."""
    if "Content Security Policy" in text or ("error" in text.lower() and "Failed to load resource" not in text and "net::" not in text):
        faults.append(text)


def _check_width(page: Page) -> None:
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{page.url} scrolls sideways by {wide} px"


def _live(page: Page) -> None:
    expect(page.locator("#live")).to_have_attribute("data-state", "live")


def sign_in(page: Page, job: str) -> None:
    """A stranger lands at the sign-in, sees a wrong password told, and comes to where he wanted to go. By keyboard."""
    page.goto("/nodes")
    expect(page.locator("h1")).to_have_text("Sign in")
    page.keyboard.type("ada")
    page.keyboard.press("Tab")
    page.keyboard.type("wrong password")
    page.keyboard.press("Enter")
    expect(page.locator("[data-problem]")).to_contain_text("is wrong")
    page.locator("[name=password]").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Nodes")
    _live(page)


def create_fleet(page: Page, job: str) -> None:
    """By keyboard only: it leads to the Fleet's own page. A taken name is told at the form; the list shows both."""
    page.goto("/fleets")
    _live(page)
    page.locator("[name=id]").focus()
    page.keyboard.type("by-keyboard")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("by-keyboard")
    page.goto("/fleets")
    expect(page.locator("#fleet-list")).to_contain_text("by-keyboard")
    page.locator("[name=id]").fill("lab")
    page.keyboard.press("Enter")
    expect(page.locator("[data-record] [data-problem]")).to_be_visible()
    page.locator("details.keys summary").click()
    _shoot(page, "fleets")


def change_fleet(page: Page, job: str) -> None:
    """R-FLT-03: a misspelled override is said at the form and stays on the page; what was not touched is not sent."""
    page.goto("/fleets")
    page.locator("#open-by-keyboard").focus()
    page.keyboard.press("Enter")
    _live(page)
    form = page.locator("#change")
    overrides = form.locator("[name=config]")
    overrides.focus()
    page.keyboard.type("storage_rot=/srv")
    form.get_by_role("button", name="Save").focus()
    page.keyboard.press("Enter")
    expect(form.locator("[data-outcome]")).to_contain_text("'storage_rot'")
    expect(page.locator("#fleet-head .warning")).to_contain_text("'storage_rot'")
    _shoot(page, "fleet-warned")
    overrides.fill("gang_deadline_seconds=soon")
    form.get_by_role("button", name="Save").click()
    expect(form.locator("[data-problem]")).to_contain_text("config.gang_deadline_seconds")
    overrides.fill("nonsense")
    form.get_by_role("button", name="Save").click()
    expect(form.locator("[data-problem]")).to_contain_text("KEY=VALUE")
    overrides.fill("gang_deadline_seconds=900\n")
    form.get_by_label("serve").check()
    form.get_by_role("button", name="Save").click()
    expect(page.locator("#fleet-head")).to_contain_text("train, serve")
    expect(page.locator("#fleet-head .warning")).to_have_count(0)
    page.locator("#drain-by-keyboard").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#fleet-head h1 .state")).to_have_text("draining")
    page.locator("#activate-by-keyboard").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#fleet-head h1 .state")).to_have_text("active")
    overrides.fill("half=typed")  # somebody else changes the Fleet meanwhile: the form follows, but not where a person is at work
    page.evaluate("callApi('PATCH', '/api/fleets/by-keyboard', {capabilities: ['env'], config: {odd: '1'}})")
    expect(form.get_by_label("env")).to_be_checked()
    expect(form.get_by_label("serve")).not_to_be_checked()
    expect(overrides).to_have_value("half=typed")
    page.once("dialog", lambda dialog: dialog.accept())
    page.locator("#delete-by-keyboard").click()
    expect(page.locator("h1")).to_have_text("Fleets")
    expect(page.locator("#open-by-keyboard")).to_have_count(0)
    page.goto("/fleets/lab")
    _live(page)
    for heading in ("Connection", "Scheduling", "Inventory"):
        expect(page.locator('[aria-label="Nodes"]')).to_contain_text(heading)
    _shoot(page, "fleet-lab")


def name_hardware(page: Page, job: str) -> None:
    """R-ENR-06: the card that no series has is offered, named by keyboard, and taken off the list."""
    page.goto("/hardware")
    _live(page)
    _shoot(page, "hardware-unknown")
    page.get_by_role("button", name="Add NVIDIA B300 to a series").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("b300")
    page.locator("#add-hardware").get_by_role("button", name="Add").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#hardware h2", has_text="b300")).to_be_visible()
    expect(page.get_by_text("Cards that are in no series")).to_have_count(0)
    _shoot(page, "hardware")


def mint(page: Page, job: str) -> None:
    """The token is shown once: closing the dialog takes it out of the page."""
    page.goto("/fleets/lab")
    _live(page)
    page.locator("#mint-lab").click()
    command = page.locator('[data-fill="command"]')
    expect(command).to_contain_text("TUNEPLANE_JOIN_TOKEN=tpj_")
    page.keyboard.press("Escape")
    expect(page.locator("#minted")).to_be_hidden()
    expect(command).to_have_text("")
    assert "tpj_" not in page.content()


def see_nodes(page: Page, job: str) -> None:
    page.goto("/nodes")
    _live(page)
    expect(page.locator("#node-list")).to_contain_text("connected")
    for heading in ("Connection", "Scheduling", "Inventory"):
        expect(page.locator(".three h3", has_text=heading).first).to_be_visible()
    page.get_by_role("button", name="Cordon").first.click()
    expect(page.locator("#node-list")).to_contain_text("an operator set it to cordoned")


def follow_log(page: Page, job: str) -> None:
    """Hostile log bytes are only text."""
    page.goto(f"/jobs/{job}")
    _live(page)
    log = page.locator("#log")
    expect(log).to_contain_text("<script>alert(1)</script>")
    text = log.inner_text()
    assert "\u202e" not in text, "a bidi override reached the page"
    assert "\x1b" not in text, "an escape reached the page"
    assert "\ufffd" in text
    expect(page.locator("#timeline")).to_contain_text("member.running")


def choose_log(page: Page, job: str) -> None:
    """L-E7: the log of an earlier attempt, and back. By keyboard."""
    log, name = page.locator("#log"), page.locator("#log-name")
    for button, told, text in (("#log-1-0", "of attempt 1, member 0", "the first try"), ("#log-2-0", "of attempt 2, member 0", "epoch 1")):
        page.locator(button).focus()
        page.keyboard.press("Enter")
        expect(name).to_have_text(told)
        expect(log).to_contain_text(text)
        _shoot(page, f"job{button[1:]}")


def _shoot(page: Page, name: str) -> None:
    """A picture for whoever wants to look: into the folder that TUNEPLANE_PICTURES names."""
    if folder := os.environ.get("TUNEPLANE_PICTURES"):
        width = page.viewport_size["width"] if page.viewport_size else 0
        page.screenshot(path=f"{folder}/{name}-{width}.png", full_page=True)


def stop_job(page: Page, job: str) -> None:
    page.once("dialog", lambda dialog: dialog.accept())
    page.locator("#stop").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#job-head")).to_contain_text("Stop asked by ada")
    expect(page.locator("#job-head h1 .state")).to_have_text("stopping")


def manage_users(page: Page, job: str) -> None:
    """Make one, give him another password, disable him: by keyboard, and the list shows it without a reload."""
    page.goto("/users")
    _live(page)
    people = page.locator("#user-list")
    page.locator("[name=username]").first.focus()
    page.keyboard.type("grace.hopper")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(people).to_contain_text("grace.hopper")
    page.once("dialog", lambda dialog: dialog.accept())
    page.locator('[id="able-grace.hopper"]').focus()
    page.keyboard.press("Enter")
    expect(people).to_contain_text("disabled")
    second = page.locator("form").nth(1)
    second.locator("[name=username]").fill("grace.hopper")
    second.locator("[name=password]").fill("short")
    page.keyboard.press("Enter")
    expect(second.locator("[data-problem]")).to_be_visible()
    second.locator("[name=password]").fill(PASSWORD + "!")
    page.keyboard.press("Enter")
    expect(second.locator("[data-done]")).to_have_text("The password is set.")
    assert PASSWORD not in page.content()
    _shoot(page, "users")


def manage_projects(page: Page, job: str) -> None:
    page.goto("/projects")
    _live(page)
    shown = page.locator("#project-list")
    page.locator("[name=id]").focus()
    page.keyboard.type("speech-and-vision")
    page.keyboard.press("Enter")
    expect(shown).to_contain_text("Nobody yet")
    page.locator("[name=project]").focus()
    page.keyboard.type("speech-and-vision")
    page.keyboard.press("Tab")
    page.keyboard.type("grace.hopper")
    page.keyboard.press("Enter")
    expect(shown).to_contain_text("1 member")
    _shoot(page, "projects")
    page.locator("[name=project]").fill("nowhere")
    page.locator("[name=username]").fill("grace.hopper")
    page.keyboard.press("Enter")
    expect(page.locator("form").nth(1).locator("[data-problem]")).to_contain_text("nowhere")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Take grace.hopper out of speech-and-vision").click()
    expect(shown).to_contain_text("Nobody yet")


def read_audit(page: Page, job: str) -> None:
    page.goto("/audit")
    _live(page)
    lines = page.locator("#audit-list")
    expect(lines).to_contain_text("project.remove-member")
    _shoot(page, "audit")
    page.locator("[name=action]").focus()
    page.keyboard.type("user.create")
    page.keyboard.press("Enter")
    expect(lines).to_contain_text("grace.hopper")
    expect(lines).not_to_contain_text("project.remove-member")
    _live(page)


def lose_connection(page: Page, job: str) -> None:
    """Never a stale state as a fresh one: silence on a half-open connection is said within seconds; live again by itself."""
    page.goto("/jobs")
    _live(page)
    print("please: freeze", flush=True)
    expect(page.locator("#live")).to_contain_text("Connection lost", timeout=25_000)
    expect(page.locator("body")).to_have_class("stale")
    print("please: thaw", flush=True)
    expect(page.locator("#live")).to_have_attribute("data-state", "live", timeout=40_000)
    expect(page.locator("body")).not_to_have_class("stale")


def sign_out(page: Page, job: str) -> None:
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("h1")).to_have_text("Sign in")
    page.goto("/jobs")
    expect(page.locator("h1")).to_have_text("Sign in")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
