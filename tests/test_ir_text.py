"""The scanners of MLIR text: strings and brackets inside of what they look for."""

from __future__ import annotations

import pytest

from flagprism_torch.ir.text import closing, header_arguments, split_location, split_top, symbol


def test_split_top_leaves_brackets_and_strings_whole() -> None:
    assert split_top("(a, b) -> c, d<e, f>, {g, h}, [i, j]", ", ") == [
        "(a, b) -> c",
        "d<e, f>",
        "{g, h}",
        "[i, j]",
    ]
    assert split_top('"a -> \\" -> b" -> (c -> d) -> e', " -> ") == [
        '"a -> \\" -> b"',
        "(c -> d)",
        "e",
    ]
    assert split_top("a.b", ".") == ["a", "b"]
    assert split_top("", ", ") == [""]


def test_closing_parenthesis() -> None:
    text = 'f(a(b), ")", "\\")") tail)'
    assert text[closing(text, 2) :] == ") tail)"
    with pytest.raises(ValueError, match="no closing parenthesis"):
        closing("f(a", 2)


@pytest.mark.parametrize(
    ("text", "code", "location"),
    [
        ("  %a = tt.x %b : i32 loc(#loc3)", "%a = tt.x %b : i32", "#loc3"),
        ("  tt.return", "tt.return", None),
        (
            '"a" loc("x)("(#loc)) b loc(callsite(#loc1 at #loc2))',
            '"a" b',
            "callsite(#loc1 at #loc2)",
        ),
        ('tt.print " loc(x" : %a loc(#loc1)', 'tt.print " loc(x" : %a', "#loc1"),
        ('tt.print " loc(#loc9)"', 'tt.print " loc(#loc9)"', None),
        ("%a: i32 loc(#loc1), %b: i32 loc(#loc2)", "%a: i32, %b: i32", "#loc2"),
    ],
)
def test_split_location(text: str, code: str, location: str | None) -> None:
    assert split_location(text) == (code, location)


def test_function_headers() -> None:
    header = 'tt.func @"k(x"(%a: i32 {n = ")"} loc("a(")) attributes {m = "(y)"} {'
    start, end = header_arguments(header)
    assert header[start:end] == '%a: i32 {n = ")"} loc("a(")'
    assert symbol(header) == "k(x"
    assert symbol("tt.call @f.g-1(%a)") == "f.g-1"
    with pytest.raises(ValueError, match="no symbol"):
        symbol("tt.call %a")
