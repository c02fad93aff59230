import pytest


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path, monkeypatch):
    """Keep decoded data of tests out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
