"""The page of performance says what the benchmarks' results say."""

from benchmarks.page import PAGE, filled


def test_the_page_of_performance_is_up_to_date() -> None:
    assert PAGE.read_text() == filled(PAGE.read_text()), "python -m benchmarks.page"
