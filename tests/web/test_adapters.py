"""An adapter that changed its base becomes a plain LoRA by one click on its page."""

from playwright.sync_api import Browser, expect

from support.web.browsing import visitor
from support.web.filled_hub import FilledHub
from support.web.pictures import take_picture


def test_a_click_converts_an_adapter_and_its_page_says_so(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        page = person.open("/admin/last-letter/adapter")
        expect(page.locator("h1 .badge")).to_have_text("convertible adapter")
        page.get_by_role("button", name="Convert to a plain LoRA").click()
        page.wait_for_url("**/-/jobs/*")
        expect(page.locator("[data-job-state=done]")).to_be_visible(timeout=90_000)
        expect(page.get_by_text("was 4 when it was pushed")).to_be_visible()
        person.check_accessible()
        take_picture(page, "conversion-laptop-light")
        page.get_by_role("link", name="Open admin/last-letter").click()
        page.wait_for_url("**/admin/last-letter/adapter")
        # The worker looks at the new commit a moment after it was made.
        badge = page.locator("h1 .badge", has_text="plain adapter")
        for _ in range(60):
            if badge.count():
                break
            page.wait_for_timeout(500)
            page.reload()
        expect(badge).to_be_visible()
        expect(page.get_by_role("button", name="Convert to a plain LoRA")).to_have_count(0)
        expect(page.get_by_text("exact but for rounding")).to_be_visible()
        person.check_accessible()


def test_a_guest_reads_the_page_and_is_offered_no_button(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        page = person.open("/admin/next-letter/adapter")
        expect(page.get_by_text("Where it can be served")).to_be_visible()
        expect(page.get_by_role("button", name="Convert to a plain LoRA")).to_have_count(0)
        person.check_accessible()
