"""Clients' profiles: in client order, by node id, and made when they are looked at."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import overload

from espalier.clients.messages.profile import Profile


class LazyProfiles(Sequence[Profile]):
    """Profiles that are made when somebody looks at them; those that are looked up by place or node are kept.

    Parameters
    ----------
    numbers : Mapping[int, int]
        Each client's number by its node id, in client order: from 0 on, without a gap.
    tell : Callable[[int, int], Profile]
        Makes the profile of a node id and a client number, the same one each time.
    """

    def __init__(self, numbers: Mapping[int, int], tell: Callable[[int, int], Profile]) -> None:
        self.numbers = numbers
        self.node_ids = list(numbers)
        self._tell = tell
        self._kept: dict[int, Profile] = {}

    @overload
    def __getitem__(self, place: int) -> Profile: ...
    @overload
    def __getitem__(self, place: slice) -> list[Profile]: ...
    def __getitem__(self, place: int | slice) -> Profile | list[Profile]:
        """Return the profile of a client, or of several."""
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        number = range(len(self))[place]
        if number not in self._kept:
            self._kept[number] = self._tell(self.node_ids[number], number)
        return self._kept[number]

    def __iter__(self) -> Iterator[Profile]:
        """Make all profiles, one after the other, and keep none."""
        return map(self._tell, self.node_ids, range(len(self)))

    def __len__(self) -> int:
        return len(self.node_ids)


class _ByNode(Mapping[int, Profile]):
    """Lazy profiles by node id."""

    def __init__(self, profiles: LazyProfiles) -> None:
        self._profiles = profiles

    def __getitem__(self, node_id: int) -> Profile:
        return self._profiles[self._profiles.numbers[node_id]]

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._profiles.numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self._profiles.node_ids)

    def __len__(self) -> int:
        return len(self._profiles)


def clients_by_node(profiles: Iterable[Profile]) -> Mapping[int, int]:
    """Return the number of each client, its ``partition-id``, by its node id, in client order."""
    if isinstance(profiles, LazyProfiles):
        return profiles.numbers
    return {profile.node_id: profile.partition_id for profile in profiles}


def profiles_by_node(profiles: Iterable[Profile]) -> Mapping[int, Profile]:
    """Return profiles by node id."""
    if isinstance(profiles, LazyProfiles):
        return _ByNode(profiles)
    return {profile.node_id: profile for profile in profiles}
