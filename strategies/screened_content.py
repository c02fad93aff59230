"""The content of a reply that was screened: Flower's strategies look at it a dozen times each."""

from collections import UserDict

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from espalier.clients.shared.records import Kind, records_in


class ScreenedContent(RecordDict):
    """A `RecordDict` whose views of one kind of record are made without checks: what is in it was checked before.

    They write through to it, as Flower's do. It is sent on as the ordinary `RecordDict` that Flower knows.
    """

    @property
    def array_records(self) -> "_View[ArrayRecord]":  # type: ignore[override]
        """The records of arrays, by name."""
        return _View(self, ArrayRecord)

    @property
    def metric_records(self) -> "_View[MetricRecord]":  # type: ignore[override]
        """The records of metrics, by name."""
        return _View(self, MetricRecord)

    @property
    def config_records(self) -> "_View[ConfigRecord]":  # type: ignore[override]
        """The records of configs, by name."""
        return _View(self, ConfigRecord)

    def deflate(self) -> bytes:
        """Deflate what other processes know: a `RecordDict`."""
        return RecordDict(dict(self)).deflate()


class _View(UserDict[str, Kind]):
    def __init__(self, content: RecordDict, kind: type[Kind]) -> None:
        self.data = records_in(content, kind)
        self._content = content

    def __setitem__(self, name: str, record: Kind) -> None:
        self._content[name] = self.data[name] = record

    def __delitem__(self, name: str) -> None:
        del self.data[name], self._content[name]


def mark_screened(content: RecordDict) -> None:
    """Make a content that was screened a `ScreenedContent`, where it is."""
    content.__class__ = ScreenedContent
