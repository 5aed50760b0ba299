"""Label selectors are read as Kubernetes reads them; what it would refuse is refused, and never matches everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.selectors import is_label_key, is_label_value, parse, split

LABELS = {"app": "web", "tier": "db", "empty": "", "example.com/gpu": "yes", "in": "out"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("  ", True),
        ("app=web", True),
        ("app==web", True),
        ("app = web", True),
        (" app=web ", True),
        ("app=api", False),
        ("app=", False),
        ("empty=", True),
        ("absent=", False),
        ("app!=api", True),
        ("app!=web", False),
        ("absent!=web", True),
        ("app", True),
        ("absent", False),
        ("!app", False),
        ("! app", False),
        ("!absent", True),
        ("app in (web,api)", True),
        ("app in (api)", False),
        ("app in ( api , web )", True),
        ("app in(web)", True),
        ("empty in ()", True),
        ("app in ()", False),
        ("app in (,web)", True),
        ("absent in (web)", False),
        ("app notin (api)", True),
        ("app notin (web,api)", False),
        ("app notin (web)", False),
        ("absent notin (web)", True),
        ("empty notin ()", False),
        ("app=web,tier=db", True),
        ("app=web,tier=web", False),
        ("app=web , tier=db", True),
        ("app in (web,api),tier notin (cache),!absent,empty", True),
        ("app in (web,api),tier in (cache)", False),
        ("example.com/gpu=yes", True),
        ("example.com/gpu in (yes)", True),
        ("!example.com/gpu", False),
        ("in=out", True),
        ("in in (out)", True),
        ("in", True),
        ("notin", False),
    ],
)
def test_a_selector_matches_as_kubernetes_documents_it(text: str, matches: bool) -> None:
    assert parse(text).matches(LABELS) is matches


def test_every_term_has_to_hold_and_no_label_fits_a_demand() -> None:
    assert not parse("app").matches({})
    assert parse("!app,app!=x,app notin (x)").matches({})


def test_only_a_selector_with_terms_is_true() -> None:
    assert not parse("")
    assert not parse(" ")
    assert parse("!app")
    assert parse("app").text == "app"


@pytest.mark.parametrize(
    "text",
    [
        ",",
        "app=web,",
        ",app=web",
        "app=web,,tier=db",
        "=web",
        "!=web",
        "!",
        "!!app",
        "!app=web",
        "!app in (web)",
        "app=web=api",
        "app===web",
        "app web",
        "app=web tier=db",
        "app in",
        "app in web",
        "app in (web",
        "app in web)",
        "app in (web))",
        "app in ((web))",
        "app in (web api)",
        "app in (web),",
        "app in (a=b)",
        "in (web)",
        "()",
        "app=(web)",
        "app>1",
        "app<1",
        "-app",
        "app-",
        "a/b/c",
        "/app",
        "example.com/",
        "Example.com/app",
        "app=-web",
        "app=web-",
        "app=we/b",
        "app='web'",
        'app="web"',
        "app=wéb",
        "äpp=web",
        "app=٣",
        f"{'a' * 64}=web",
        f"app={'w' * 64}",
        f"{'d' * 254}/app",
        f"app in ({'w' * 64})",
        "$(reboot)",
        "app=web;tier=db",
        "app=web\x00",
    ],
)
def test_what_kubernetes_would_refuse_is_refused_with_the_term(text: str) -> None:
    with pytest.raises(ValueError, match="unable to parse requirement"):
        parse(text)


def test_the_bad_term_among_good_ones_is_named() -> None:
    with pytest.raises(ValueError, match=r"unable to parse requirement: tier in web$"):
        parse("app=web,tier in web,x")


@given(st.text(alphabet="ab1-_./!=,() \tinot", max_size=24) | st.text(max_size=24))
def test_any_text_is_a_selector_or_a_value_error_and_only_blank_text_is_everything(text: str) -> None:
    try:
        selector = parse(text)
    except ValueError:
        return
    assert bool(selector) is bool(text.strip())
    assert len(selector.terms) == len(split(text))


KEYS = st.from_regex(r"\A([a-z]{1,5}/)?[A-Za-z0-9]([-_.a-z0-9]{0,3}[a-z0-9])?\Z")
VALUES = st.from_regex(r"\A([A-Za-z0-9]([-_.a-z0-9]{0,3}[a-z0-9])?)?\Z")


@given(KEYS, VALUES, st.dictionaries(KEYS, VALUES, max_size=3))
def test_each_form_and_its_negation_are_opposites(key: str, value: str, labels: dict[str, str]) -> None:
    labels |= {key: value} if len(labels) % 2 else {}
    for plain, negated in (
        (f"{key}={value}", f"{key}!={value}"),
        (f"{key} in ({value},other)", f"{key} notin ({value},other)"),
        (key, f"!{key}"),
    ):
        assert parse(plain).matches(labels) is not parse(negated).matches(labels)
    assert parse(f"{key}={value}").matches(labels) is (labels.get(key) == value)


@pytest.mark.parametrize(
    ("text", "terms"),
    [("", []), ("a", ["a"]), ("a,b", ["a", "b"]), ("a in (x,y), b", ["a in (x,y)", "b"]), ("a,", ["a", ""])],
)
def test_commas_outside_of_parentheses_separate(text: str, terms: list[str]) -> None:
    assert split(text) == terms


def test_keys_and_values_are_those_of_labels() -> None:
    assert is_label_key("rebellions.ai/npu.deploy.driver")
    assert not is_label_key("")
    assert is_label_value("")
    assert is_label_value("w" * 63)
    assert not is_label_value("w" * 64)
    assert not is_label_value("web\n")
