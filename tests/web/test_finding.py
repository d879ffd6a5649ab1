"""Models are found as one types, and everything is reached by keys alone."""

import pytest
from playwright.sync_api import Browser, Route, expect

from support.web.browsing import visitor
from support.web.filled_hub import FilledHub


def test_the_list_follows_the_words_and_the_filters(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        page = person.open("/")
        page.evaluate("window.isTheSamePage = true")
        page.locator("#q").press_sequentially("haiku")
        # The fine-tune, and the export that was made from it.
        expect(page.locator("#models .model-name")).to_have_count(2)
        for row in page.locator("#models .model-name").all():
            expect(row).to_contain_text("haiku")
        page.wait_for_url(f"{hub.url}/?q=haiku")
        page.locator("#q").fill("")
        page.locator(".more-filters > summary").click()
        page.get_by_label("Kind of model").select_option("Merges")
        expect(page.locator("#models")).to_contain_text("admin/poems")
        expect(page.locator("#models")).not_to_contain_text("admin/haiku")
        page.get_by_label("Kind of model").select_option("Any")
        page.locator("#sort").select_option("Most saved")
        expect(page.locator("#models .model-name").first).to_contain_text("admin")
        page.wait_for_url(f"{hub.url}/?sort=saved")
        assert page.evaluate("window.isTheSamePage")
        page.locator("#models .model-name").first.click()
        page.go_back()
        expect(page.locator("#sort")).to_have_value("saved")


@pytest.mark.parametrize(
    ("path", "choice", "label", "words", "address"),
    [
        ("/", "#filter-role", "Merges", "#q", "/?q=ida&role=merge"),
        ("/-/admin/access/users", "[name=state]", "disabled", "[name=words]",
         "/-/admin/access/users?words=ida&state=disabled"),
    ],
)  # fmt: skip
def test_words_that_are_typed_while_a_filter_is_answered_count(
    browser: Browser, hub: FilledHub, path: str, choice: str, label: str, words: str, address: str
) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        page = person.open(path)
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        answers: list[Route] = []

        def hold(route: Route) -> None:  # the library takes no method of a list
            answers.append(route)

        page.route(f"{hub.url}{path}?**", hold, times=1)
        with page.expect_request(f"{hub.url}{path}?**"):
            page.locator(choice).select_option(label)
        page.locator(words).fill("ida")
        page.wait_for_timeout(500)  # longer than a form waits for more letters
        answers[0].continue_()
        page.wait_for_url(f"{hub.url}{address}")


def test_an_address_names_only_the_filters_that_are_set(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        page = person.open("/admin/haiku")
        page.locator("#top-q").press("Enter")
        # Browsers write the question mark of an empty form.
        page.wait_for_url(f"{hub.url}/?")
        page.locator("#q").press("Enter")
        page.locator("#sort").select_option("Largest")
        page.wait_for_url(f"{hub.url}/?sort=size")
        page = person.open("/-/admin/access/users?state=disabled&sort=-created")
        page.get_by_label("State").select_option("all users")
        page.locator("form.filters input[name=words]").fill("ida")
        page.wait_for_url(f"{hub.url}/-/admin/access/users?sort=-created&words=ida")


def test_a_private_model_is_found_by_its_owner_alone(browser: Browser, hub: FilledHub) -> None:
    for token, count in ((None, 0), (hub.guest_token, 0), (hub.token, 1)):
        with visitor(browser, hub.url) as person:
            if token is not None:
                person.log_in(token)
            page = person.open("/?q=limerick")
            expect(page.locator("#models .model-name")).to_have_count(count)
            person.open("/admin/limerick", status=200 if count else 404)


def test_administrators_pages_are_for_administrators(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.guest_token)
        for path in ("/-/admin", "/-/admin/jobs", "/-/admin/access/audit"):
            page = person.open(path, status=404)
            expect(page.get_by_role("link", name="Admin")).to_have_count(0)
        person.open("/admin/haiku/settings", status=403)


def test_keys_reach_the_content_the_menu_and_a_model(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        page = person.open("/")
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_text("Skip to the content")
        assert page.locator(":focus").bounding_box(), "it shows while it has the focus"
        page.keyboard.press("Enter")
        for _ in range(12):
            page.keyboard.press("Tab")
            style = page.evaluate(
                "() => { const s = getComputedStyle(document.activeElement);"
                " return s.outlineStyle + s.boxShadow }"
            )
            assert style != "nonenone", page.evaluate("document.activeElement.outerHTML")
        page.locator("header summary").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_text("Your models")
        page.keyboard.press("Enter")
        page.wait_for_url(f"{hub.url}/admin")
        page.locator("#models .model-name").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"{hub.url}/admin/*")
