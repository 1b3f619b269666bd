"""The tables of docs/performance.md against the committed results."""

from benchmarks.page import PAGE, fill_tables


def test_performance_page_is_up_to_date() -> None:
    assert PAGE.read_text() == fill_tables(PAGE.read_text()), "python -m benchmarks.page"
