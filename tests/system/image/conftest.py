"""The fixtures of the image tier: the built image, a container of it, its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_plane.fixtures import (  # noqa: F401  # fixtures, used by their names
    admin_api,
    control_plane,
    node,
    operands,
)
from tests.support.image import builder, distributions
from tests.support.tiers import skip_or_fail


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.image)


@pytest.fixture(scope="session")
def able() -> None:
    if lacking := builder.missing():
        skip_or_fail(f"image tier: missing {'; '.join(lacking)}")


@pytest.fixture(scope="session")
def releases(able: None) -> None:
    try:
        for release in (distributions.OLDER, distributions.NEWER):
            distributions.tree(release)
    except builder.ImageTierError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def image(able: None) -> builder.Image:
    try:
        return builder.built()
    except builder.ImageTierError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def root(image: builder.Image) -> Path:
    """The image's files, which no test may change."""
    return image.root()


@pytest.fixture(scope="session")
def container(image: builder.Image) -> Iterator[builder.Container]:
    with image.container() as made:
        yield made
