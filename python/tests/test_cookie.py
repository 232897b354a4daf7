"""Cookies of reads after writes: the same texts as Rust's, which reads the same file of cases."""

from pathlib import Path

import pytest
from holdfast.cookie import Cookie

CASES = [
    line.split("\t")
    for line in (Path(__file__).parent / "cookies.tsv").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def of(kind):
    return [fields[1:] for fields in CASES if fields[0] == kind]


@pytest.mark.parametrize("fields", of("make"), ids="|".join)
def test_makes_what_rust_makes(fields):
    now_s, position, text = fields
    position = None if position == "-" else position
    if text == "refused":
        with pytest.raises(ValueError, match="give MariaDB's"):
            Cookie.written(position=position, now_s=int(now_s))
        return
    cookie = Cookie.written(position=position, now_s=int(now_s))
    assert str(cookie) == text
    assert Cookie.parse(text) == cookie


@pytest.mark.parametrize("fields", of("detours"), ids="|".join)
def test_reads_what_rust_reads(fields):
    text, now_s, lifetime_s, replica, expected = fields
    cookie = Cookie.parse(text)
    if cookie is None:
        assert expected == "none"
        return
    replica = None if replica == "-" else replica
    detours = cookie.detours(now_s=int(now_s), lifetime_s=int(lifetime_s), replica=replica)
    assert expected == ("yes" if detours else "no")


@pytest.mark.parametrize("fields", of("behind"), ids="|".join)
def test_two_writes_are_one_cookie(fields):
    later, earlier, text = fields
    assert str(Cookie.parse(later).behind(Cookie.parse(earlier))) == text


def test_is_bounded_and_uses_the_clock():
    many = [f"{domain}-1-1000000" for domain in range(100)]
    with pytest.raises(ValueError, match="512"):
        Cookie.written(position=",".join(many))
    assert Cookie.parse("1.1." + "_".join(many)) is None
    assert Cookie.written().detours(lifetime_s=3600)
    assert len(of("make")) >= 8 and len(of("detours")) >= 20
