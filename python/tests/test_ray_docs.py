"""The ten lines of docs/python.md, as they stand there, as a program of its own beside a node."""

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="the ten lines are not tried: `make python-ray` installs Ray")
pytest.importorskip("pandas", reason="the ten lines are not tried: `make python-ray` installs pandas")

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_the_ten_lines_of_the_page_do_what_it_says(node, client, tmp_path):
    lines = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)
    lines = lines.replace("127.0.0.1:7400", node.ready["native"]).replace("data/secret", f"{node.directory}/secret")
    (tmp_path / "ten.py").write_text(lines)
    done = subprocess.run([sys.executable, "ten.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "not to be" in done.stdout
    with client.open("/sorted") as file:
        assert file.read().decode() == "".join(sorted(lines.splitlines(keepends=True)))
    assert client.get("/counts/part-00000") == b"be\t2\nnot\t1\nor\t1\nto\t2\n"
