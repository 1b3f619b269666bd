"""Tables as files: what a configuration says, and what is wrong with it."""

import experiments.protocols  # noqa: F401 # fills the registry
import pytest
import toy_protocol
from experiments.harness.config import UsageError, find_tables, jobs_of, overlay, read_table, table_names
from experiments.harness.protocol import Job
from toy_protocol import write_config


def test_a_table_is_its_file(tmp_path):
    write_config(tmp_path)
    table = read_table("paper/toys", tmp_path)
    assert (table.name, table.title, table.source, table.protocol) == ("paper/toys", "Toys", "No paper.", "toy")
    assert table.settings == {"factor": 2.0, "units": 4, "datasets": ["a", "b"], "log": str(tmp_path / "log.txt")}
    assert table.published == {"a": 1.5}
    assert table.folder == tmp_path / "paper" / "toys"
    assert [job.units for job in jobs_of(table, toy_protocol.Toy())] == [("0", "1", "2", "3")] * 2


def test_a_quick_table_has_other_settings_in_another_place(tmp_path):
    write_config(tmp_path)
    table = read_table("paper/toys", tmp_path, quick=True)
    assert table.settings["units"] == 1
    assert table.settings["factor"] == 2.0
    assert table.folder == tmp_path / ".quick" / "paper" / "toys"
    table.folder.mkdir(parents=True)
    (table.folder / "config.toml").touch()
    assert table_names(tmp_path) == ["paper/toys"]


def test_a_quick_table_may_name_some_methods(tmp_path):
    log = write_config(tmp_path)
    path = log.with_name("paper") / "toys" / "config.toml"
    methods = 'methods = [{ name = "one", p = 1 }, { name = "two", p = 2 }]\n'
    path.write_text(methods + path.read_text() + 'methods = ["two", { name = "three", p = 3 }]\n')
    found = read_table("paper/toys", tmp_path, quick=True).settings["methods"]
    assert found == [{"name": "two", "p": 2}, {"name": "three", "p": 3}]
    path.write_text(path.read_text().replace('["two"', '["too"'))
    with pytest.raises(UsageError, match=r"methods of \[quick\] name 'too'; the table has 'one', 'two'"):
        read_table("paper/toys", tmp_path, quick=True)


def test_a_table_extends_another(tmp_path):
    write_config(tmp_path)
    other = tmp_path / "paper" / "more"
    other.mkdir()
    own = 'title = "More"\nsource = "None."\nprotocol = "toy"\nextends = "paper/toys"\nunits = 7\n'
    (other / "config.toml").write_text(own)
    base, table = read_table("paper/toys", tmp_path), read_table("paper/more", tmp_path)
    assert table.settings == {**base.settings, "units": 7}
    assert (table.title, table.published) == ("More", {})
    assert read_table("paper/more", tmp_path, quick=True).settings["units"] == 1
    for wrong in ("paper/none", "paper/more"):
        (other / "config.toml").write_text(own.replace("paper/toys", wrong))
        with pytest.raises(UsageError, match=f"extends must name a table that extends none, .*got '{wrong}'"):
            read_table("paper/more", tmp_path)


def test_overlay_goes_into_tables_only():
    base = {"net": {"hidden": [50], "act": "relu"}, "datasets": {"a": {}}, "methods": [1, 2]}
    changed = overlay(base, {"net": {"hidden": [5]}, "datasets": ["b"], "methods": [3], "new": 1})
    assert changed == {"net": {"hidden": [5], "act": "relu"}, "datasets": ["b"], "methods": [3], "new": 1}
    assert base["net"] == {"hidden": [50], "act": "relu"}


def test_tables_are_found_by_name_and_pattern(tmp_path):
    for name in ("paper/one", "paper/two", "other/one"):
        write_config(tmp_path, name)
    assert [table.name for table in find_tables(["paper/*", "paper/one"], tmp_path)] == ["paper/one", "paper/two"]
    assert len(find_tables(["*"], tmp_path)) == 3
    with pytest.raises(
        UsageError, match=r"no table is called 'x/three'; the tables are other/one, paper/one, paper/two; see `list`"
    ):
        find_tables(["*", "x/three"], tmp_path)
    with pytest.raises(UsageError, match=r"no table is called 'paper/too' \(did you mean paper/two\?\); the tables are"):
        find_tables(["paper/too"], tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = ", r"config.toml cannot be read as toml: Invalid value"),
        ('title = "x"\nsource = "y"', r"config.toml: protocol must be text, got None"),
        ('title = 3\nsource = "y"\nprotocol = "toy"', r"config.toml: title must be text, got 3"),
        ('title = "x"\nsource = " "\nprotocol = "toy"', r"source must be text"),
        ('title = "x"\nsource = "y"\nprotocol = "magic"', r"config.toml: protocol 'magic' is unknown; the protocols are .*toy"),
        ('title = "x"\nsource = "y"\nprotocol = "toy"\nremarks = 1', "remarks must be text, got 1"),
        ('title = "x"\nsource = "y"\nprotocol = "toy"\nquick = 1', r"quick must be a table, \[quick\], got 1"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path, text, message):
    (tmp_path / "p" / "t").mkdir(parents=True)
    (tmp_path / "p" / "t" / "config.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_table("p/t", tmp_path)


def test_quick_needs_a_section(tmp_path):
    write_config(tmp_path)
    path = tmp_path / "paper" / "toys" / "config.toml"
    path.write_text(path.read_text().split("[quick]")[0])
    with pytest.raises(UsageError, match=r"needs a section \[quick\]"):
        read_table("paper/toys", tmp_path, quick=True)


def test_settings_the_protocol_refuses(tmp_path):
    write_config(tmp_path, factor=-1.0)
    with pytest.raises(UsageError, match=r"paper/toys/config.toml: factor must be above 0, got -1.0"):
        jobs_of(read_table("paper/toys", tmp_path), toy_protocol.Toy())


@pytest.mark.parametrize("keys", [("a", "a"), ("a/b", "c")])
def test_jobs_need_names_of_their_own(tmp_path, monkeypatch, keys):
    write_config(tmp_path)
    monkeypatch.setattr(toy_protocol.Toy, "jobs", lambda self, table: [Job(key, {}, ("0",)) for key in keys])
    with pytest.raises(UsageError, match=f"keys of jobs must be unique file names, got '{keys[0]}'"):
        jobs_of(read_table("paper/toys", tmp_path), toy_protocol.Toy())
