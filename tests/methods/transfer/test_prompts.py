"""The texts of Trans-LoRA, and the items that are read from what a model writes."""

import time

import pytest

from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.prompts import (
    ItemForm,
    list_prompt,
    parse_items,
    question_of,
    shown_seeds,
)

SEEDS = ["one two", "three", "four", "five six", "seven"]
FORM = ItemForm.of(SEEDS)


def test_the_list_is_the_papers_byte_for_byte() -> None:
    assert list_prompt(SEEDS) == (
        "Here are 10 examples:\n\n1. one two\n2. three\n3. four\n4. five six\n5. seven\n6."
    )


def test_more_seeds_announce_a_longer_list() -> None:
    prompt = list_prompt([str(i) for i in range(15)])
    assert prompt.startswith("Here are 30 examples:\n\n1. 0\n")
    assert prompt.endswith("\n15. 14\n16.")


def test_the_question_is_the_papers_byte_for_byte() -> None:
    assert question_of("Is it so?", "boolean") == (
        "Answer in as few words as possible. Is it so? Is the above question from the boolean"
        " dataset?"
    )


def test_seeds_are_shuffled_alike_for_the_same_seed_and_call() -> None:
    orders = [shown_seeds(SEEDS, 1, call) for call in range(20)]
    assert orders == [shown_seeds(SEEDS, 1, call) for call in range(20)]
    assert len({tuple(each) for each in orders}) > 10
    assert all(sorted(each) == sorted(SEEDS) for each in orders)
    assert orders != [shown_seeds(SEEDS, 2, call) for call in range(20)]


def test_of_many_seeds_each_list_shows_five_and_all_have_their_turn() -> None:
    many = [str(i) for i in range(15)]
    lists = [shown_seeds(many, 1, call) for call in range(20)]
    assert all(len(each) == len(set(each)) == 5 for each in lists)
    assert {text for each in lists for text in each} == set(many)


@pytest.mark.parametrize(
    ("text", "is_whole", "items"),
    [
        (" a\n7. b\n8. c\n9. d\n10. e\n", True, ["a", "b", "c", "d", "e"]),
        # The last item lacks its end, unless the model ended by itself or began another line.
        (" a\n7. b\n8. c", False, ["a", "b"]),
        (" a\n7. b\n8. c", True, ["a", "b", "c"]),
        (" a\n7. b\n8. c\n9", False, ["a", "b", "c"]),
        # The list ends at its announced length and at a blank line.
        (" a\n7. b\n8. c\n9. d\n10. e\n11. f\n12. g", True, ["a", "b", "c", "d", "e"]),
        (" a\n7. b\n\n8. c\n", True, ["a", "b"]),
        (" a\n7. b\n\nGood", False, ["a", "b"]),
        # A number out of order ends it.
        (" a\n9. b\n10. c\n", True, ["a"]),
        # Empty items, and those that are much longer than every seed.
        (f" \n7. b\n8. {'c' * 100}\n9. d\n", True, ["b", "d"]),
        ("", True, []),
        ("", False, []),
    ],
)
def test_items_are_the_numbered_lines(text: str, is_whole: bool, items: list[str]) -> None:
    assert parse_items(text, 5, FORM, is_whole=is_whole) == items


def test_items_have_several_lines_where_seeds_have() -> None:
    form = ItemForm.of(["a\nb", "c"])
    assert parse_items(" x\ny\n4. z\nw\n\nrest", 2, form, is_whole=False) == ["x\ny", "z\nw"]
    form = ItemForm.of(["a\n\nb", "c"])
    assert parse_items(" x\n\ny\n4. z\n5. w", 2, form, is_whole=True) == ["x\n\ny", "z"]


def test_the_contract_cuts_and_finds_the_answer() -> None:
    contract = Contract(
        prompt="Q: {input}\nA:", stop=("\n", "Q:"), answer_pattern=r"answer is (-?\d+)"
    )
    assert contract.prompt_of("1+{1}") == "Q: 1+{1}\nA:"
    assert contract.completion_of(" So the answer is 42. Q: next\n") == " So the answer is 42. "
    assert contract.answer_of(" So the answer is 42.\nThe answer is 43") == "42"
    lined = Contract(answer_pattern=r"#### (\d+)")
    assert lined.answer_of("so 3\n#### 12\n#### 13") == "12"
    # Without a pattern nothing is cut off.
    assert Contract().answer_of("a" * 9_000 + "b") != Contract().answer_of("a" * 9_000 + "c")
    assert contract.answer_of("  I do   not\tknow ") == "I do not know"


def test_an_answer_is_found_in_bounded_time() -> None:
    start = time.process_time()
    Contract(answer_pattern="a*a*b").answer_of("a" * 10_000)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"prompt": "no slot"}, r"\{input\} once, not 0"),
        ({"prompt": "{input} {input}"}, "not 2"),
        ({"stop": ("",)}, "would end every completion"),
        ({"answer_pattern": "("}, "no regular expression"),
        ({"answer_pattern": "(a+)+$"}, "forever"),
        ({"answer_pattern": "a*a*a*b"}, "forever"),
    ],
)
def test_a_contract_that_cannot_work_is_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Contract.model_validate(fields)
