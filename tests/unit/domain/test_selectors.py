"""Label selectors are read as Kubernetes reads them; what it would refuse is refused, and never matches everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.selectors import is_label_key, is_label_value, parse, split

LABELS = {"app": "web", "tier": "db", "empty": "", "example.com/gpu": "yes", "in": "out"}
MATCH = (
    *("", "  ", "app", "!absent", "in", "in=out", "in in (out)", "example.com/gpu=yes", "example.com/gpu in (yes)"),
    *("app=web", "app==web", "app = web", " app=web ", "empty=", "app!=api", "absent!=web"),
    *("app in (web,api)", "app in ( api , web )", "app in(web)", "app in (,web)", "empty in ()"),
    *("app notin (api)", "absent notin (web)"),
    *("app=web,tier=db", "app=web , tier=db", "app in (web,api),tier notin (cache),!absent,empty"),
)
DIFFER = (
    *("absent", "!app", "! app", "notin", "!example.com/gpu"),
    *("app=api", "app=", "absent=", "app!=web"),
    *("app in (api)", "app in ()", "absent in (web)", "app notin (web,api)", "app notin (web)", "empty notin ()"),
    *("app=web,tier=web", "app in (web,api),tier in (cache)"),
)
REFUSED = (
    *(",", "app=web,", ",app=web", "app=web,,tier=db", "app=web;tier=db", "$(reboot)"),
    *("=web", "!=web", "!", "!!app", "!app=web", "!app in (web)", "app=web=api", "app===web", "app>1", "app<1"),
    *("app web", "app=web tier=db", "app in", "app in web", "app in (web", "app in web)", "app in (web))"),
    *("app in ((web))", "app in (web api)", "app in (web),", "app in (a=b)", "in (web)", "()", "app=(web)"),
    *("-app", "app-", "a/b/c", "/app", "example.com/", "Example.com/app", "äpp=web"),
    *("app=-web", "app=web-", "app=we/b", "app='web'", 'app="web"', "app=wéb", "app=٣", "app=web\x00"),
    *(f"{'a' * 64}=web", f"app={'w' * 64}", f"{'d' * 254}/app", f"app in ({'w' * 64})"),
)


def test_a_selector_matches_as_kubernetes_documents_it() -> None:
    assert [text for text in MATCH if not parse(text).matches(LABELS)] == []
    assert [text for text in DIFFER if parse(text).matches(LABELS)] == []


def test_every_term_has_to_hold_and_no_label_fits_a_demand() -> None:
    assert not parse("app").matches({})
    assert parse("!app,app!=x,app notin (x)").matches({})
    assert parse("app").text == "app"


def test_what_kubernetes_would_refuse_is_refused_and_the_bad_term_among_good_ones_is_named() -> None:
    for text in REFUSED:
        with pytest.raises(ValueError, match="unable to parse requirement"):
            parse(text)
    with pytest.raises(ValueError, match=r"unable to parse requirement: tier in web$"):
        parse("app=web,tier in web,x")


@given(st.text(alphabet="ab1-_./!=,() \tinot", max_size=24) | st.text(max_size=24))
def test_any_text_is_a_selector_or_a_value_error_and_only_blank_text_is_everything(text: str) -> None:
    for blank in ("", " "):
        assert not parse(blank)
    assert parse("!app")
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


def test_commas_outside_of_parentheses_separate() -> None:
    rows = {"": [], "a": ["a"], "a,b": ["a", "b"], "a in (x,y), b": ["a in (x,y)", "b"], "a,": ["a", ""]}
    assert {text: split(text) for text in rows} == rows


def test_keys_and_values_are_those_of_labels() -> None:
    assert [is_label_key(key) for key in ("rebellions.ai/npu.deploy.driver", "")] == [True, False]
    assert [is_label_value(value) for value in ("", "w" * 63, "w" * 64, "web\n")] == [True, True, False, False]
