"""Files that cannot be read as a scenario: what is wrong with them, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.load import ScenarioError, load


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\xff\xfeh\x00", "not UTF-8 at byte 1; save it as UTF-8"), (b"a: \xe9", "at byte 4")],
)
def test_a_file_in_another_encoding_says_where_and_what_to_do(
    tmp_path: Path, content: bytes, says: str
) -> None:
    """UTF-16 from an editor, Latin-1 from an old one."""
    file = tmp_path / "my.yaml"
    file.write_bytes(content)
    with pytest.raises(ScenarioError, match=says):
        load(file)


def test_a_folder_is_no_scenario(tmp_path: Path) -> None:
    """The system's own word, without its number."""
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path)
    assert "Errno" not in str(caught.value)
    assert str(caught.value).endswith("cannot be read: Is a directory")
