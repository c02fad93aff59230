"""What a machine has, read from files like those of Linux."""

import os

import pytest

from espalier.clients.device.machine import cpu_count, highest_frequency_hz, memory_bytes


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def scaling(cpu, low, high):
    folder = f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
    return {f"{folder}/cpuinfo_min_freq": low, f"{folder}/cpuinfo_max_freq": high}


CPUINFO = "processor\t: 0\ncpu MHz\t\t: 2400.5\n\nprocessor\t: 1\ncpu MHz\t\t: 2700.000\nflags : cpu MHz\n"


@pytest.mark.parametrize(
    ("files", "highest"),
    [
        (scaling(0, "400000\n", "1800000\n"), 1.8e9),
        # Big and little cores; cpufreq and cpuidle are no processors.
        (
            scaling(0, "600000", "1500000") | scaling(10, "500000", "2200000") | scaling("freq", "1", "9"),
            2.2e9,
        ),
        ({"proc/cpuinfo": CPUINFO} | scaling(0, "400000", "1800000"), 1.8e9),
        ({"proc/cpuinfo": CPUINFO}, 2.7e9),
        ({"proc/cpuinfo": CPUINFO} | scaling(0, "<unknown>", "<unknown>"), 2.7e9),
        ({"proc/cpuinfo": "processor : 0\nBogoMIPS : 48.00\n"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_highest_frequency(tmp_path, files, highest):
    assert highest_frequency_hz(write(tmp_path, files)) == highest


def test_this_machine():
    assert 1 <= cpu_count() <= (os.cpu_count() or 1)
    assert memory_bytes() > 64e6
    assert 0 <= highest_frequency_hz() < 1e11


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux can")
def test_only_processors_that_may_be_used_count():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cpu_count() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_what_the_system_does_not_say_is_unknown(monkeypatch):
    def unknown(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert memory_bytes() == 0
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cpu_count() == (os.cpu_count() or 0)
