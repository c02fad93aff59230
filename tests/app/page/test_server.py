"""The server of a live page: who may read it, and that what is new arrives."""

import json
import shutil
import socket
import struct
from contextlib import contextmanager
from threading import Event, Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from espalier.app.ground.errors import UserError
from espalier.app.page import runs as runs_module
from espalier.app.page import server as server_module
from espalier.app.page.connected import count_connected
from espalier.app.page.html import policy
from espalier.app.page.runs import Runs
from espalier.app.page.server import Source, is_loopback, opened
from espalier.app.page.watch import check_access, main
from tests.app.page.runs import write_large_run

TOKEN = "a-token-of-16-letters"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_large_run(tmp_path_factory.mktemp("runs") / "run", clients=6, rounds=4, edges=2)


@contextmanager
def serving(folders, token="", host="127.0.0.1"):
    with opened(host, 0, token, Source(Runs(folders))) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server, path, **headers):
    """Return the status, the headers and the text of an answer."""
    request = Request(f"http://127.0.0.1:{server.server_address[1]}{path}", headers=headers)
    try:
        with urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except HTTPError as error:
        return error.code, error.headers, error.read().decode()


def test_page_and_data_come_with_headers_that_let_nothing_else_in(run):
    with serving([run]) as server:
        status, headers, text = get(server, "/")
        assert status == 200
        assert text.startswith("<!doctype html>")
        assert headers["Content-Security-Policy"] == policy(is_live=True) + "; frame-ancestors 'none'"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        status, _, text = get(server, "/data.json")
        assert (status, json.loads(text)["runs"][0]["numbers"]) == (200, [1, 2, 3, 4])
        assert get(server, "/config.json")[0] == 404
        assert get(server, "/../config.json")[0] == 404


def test_what_is_new_arrives_once(run, tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(server_module, "SHARE", 1e9)
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    content = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(content[:3]))
    with serving([folder]) as server:
        first = json.loads(get(server, "/data.json?have=0")[2])
        assert first["runs"][0]["numbers"] == [1]
        have = first["live"]["version"]
        assert get(server, f"/data.json?have={have}")[0] == 204
        with (folder / "metrics.jsonl").open("a") as file:
            file.writelines(content[3:6])
        status, _, text = get(server, f"/data.json?have={have}")
        assert (status, json.loads(text)["runs"][0]["numbers"]) == (200, [1, 2])


def test_what_takes_long_is_read_less_often(run, tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(server_module, "SHARE", 1e-9)
    shutil.copytree(run, tmp_path / "seed0")
    source = Source(Runs([tmp_path]))
    first = source.latest()
    shutil.copytree(run, tmp_path / "seed1")
    assert source.latest() == first


def test_a_run_that_is_removed_from_a_sweep_is_no_longer_shown(run, tmp_path):
    for name in ("seed0", "seed1"):
        shutil.copytree(run, tmp_path / name)
    runs = Runs([tmp_path])
    assert runs.refresh()
    assert not runs.refresh()
    shutil.rmtree(tmp_path / "seed0")
    assert runs.refresh()
    assert [own["label"] for own in runs.data()] == ["seed1"]


def test_of_very_many_clients_those_of_later_runs_are_left_out(run, tmp_path, monkeypatch):
    monkeypatch.setattr(runs_module, "MOST_ROWS", 1)
    for name in ("seed0", "seed1"):
        shutil.copytree(run, tmp_path / name)
    runs = Runs([tmp_path])
    runs.refresh()
    first, second = runs.data()
    assert (len(first["edge_of"]), len(second["edge_of"])) == (6, 0)
    assert second["notes"] == [
        "Single clients are left out, as the page has many runs: espalier page FOLDER shows them."
    ]
    assert second["series"] == first["series"]


def test_runs_that_begin_later_appear_beside_the_others(run, tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(server_module, "SHARE", 1e9)
    shutil.copytree(run, tmp_path / "seed0")
    with serving([tmp_path]) as server:
        assert [own["label"] for own in json.loads(get(server, "/data.json")[2])["runs"]] == ["seed0"]
        shutil.copytree(run, tmp_path / "seed1")
        assert [own["label"] for own in json.loads(get(server, "/data.json")[2])["runs"]] == ["seed0", "seed1"]


def test_a_token_is_asked_for_where_there_is_one(run):
    with serving([run], TOKEN) as server:
        assert server.url == f"http://127.0.0.1:{server.server_address[1]}/?token={TOKEN}"
        for path in ("/", "/data.json", "/?token=", f"/?token={TOKEN}x", "/?token=%C3%A4"):
            status, _, text = get(server, path)
            assert (status, "token" in text, "h-fedavg" in text) == (403, True, False)
        for path in ("/", "/data.json"):
            assert get(server, f"{path}?token={TOKEN}")[0] == 200


def test_another_sites_name_for_this_machine_is_refused(run):
    with serving([run]) as server:
        for host, status in (
            ("evil.example", 403),
            ("", 403),
            ("localhost:1", 200),
            ("127.0.0.1", 200),
            ("[::1]:80", 200),
        ):
            assert get(server, "/data.json", Host=host)[0] == status, host


def test_what_is_no_address_is_refused(run):
    with serving([run]) as server, socket.create_connection(server.server_address[:2], timeout=10) as client:
        client.sendall(b"GET http://[ HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert client.makefile().readline().split()[1] == "400"


@pytest.mark.parametrize("asked", [b"GET / HT", b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"], ids=["asks", "waits"])
def test_a_browser_that_has_gone_is_nothing_to_say(run, asked, monkeypatch, capsys):
    begun, gone, over = Event(), Event(), Event()
    latest = Source.latest

    def late(source):
        begun.set()
        assert gone.wait(10)
        return latest(source)

    monkeypatch.setattr(Source, "latest", late)
    with serving([run]) as server:
        close = server.close_request
        monkeypatch.setattr(server, "close_request", lambda request: (close(request), over.set()))
        with socket.create_connection(server.server_address) as browser:
            browser.sendall(asked)
            assert not asked.endswith(b"\n\r\n") or begun.wait(10)
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends with a reset
        gone.set()
        assert over.wait(10)
        monkeypatch.setattr(Source, "latest", latest)
        assert get(server, "/")[0] == 200
    assert capsys.readouterr().err == ""


def test_a_run_that_is_removed_is_told_in_a_line(run, tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(server_module, "SHARE", 1e9)
    shutil.copytree(run, tmp_path / "run")
    with serving([tmp_path / "run"]) as server:
        assert get(server, "/")[0] == 200
        shutil.rmtree(tmp_path / "run")
        status, _, text = get(server, "/data.json")
        assert (status, text.count("\n")) == (500, 1)
        assert "allowed is the results folder of a run" in text


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--host", "0.0.0.0"], "--host = '0.0.0.0': allowed is 127.0.0.1, or another with --token, such as --token="),
        (["--host", "::"], "--host = '::': allowed is 127.0.0.1, or another with --token"),
        (["--host", ""], "--host = '': allowed is an address of this machine"),
        (
            ["--host", "no.invalid", "--token", "x" * 16],
            "--host = 'no.invalid': allowed is an address of this machine (",
        ),
        (["--host", "a..b", "--token", "x" * 16], "--host = 'a..b': allowed is an address of this machine ("),
        (["--host", "192.0.2.1", "--token", "x" * 16], "--host = '192.0.2.1': allowed is an address of this machine ("),
        (["--token", "short"], "--token = 'short': allowed is 16 or more letters, digits, - and _, such as "),
        (["--token", "ä" * 20], "allowed is 16 or more letters, digits, - and _, such as "),
        (["--port", "70000"], "--port = 70000: allowed is "),
    ],
)
def test_mistakes_are_one_line(run, options, line, capsys):
    assert main([str(run), *options]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


def test_a_port_that_is_taken_and_a_folder_without_runs_are_one_line(run, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([str(run), "--port", str(port)]) == 2
    assert f"--port = {port}: allowed is a free port at 127.0.0.1 (" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 2
    assert "FOLDER = " in capsys.readouterr().err


def test_the_example_of_a_token_is_allowed():
    with pytest.raises(UserError) as error:
        check_access("0.0.0.0", "")
    check_access("0.0.0.0", str(error.value).rpartition("=")[2])


def test_addresses_of_this_machine_alone():
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.8.8.8")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org", "")))


def test_connected_nodes_are_counted_by_prometheus(run):
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()
    prometheus.Gauge("espalier_connected_nodes", "Nodes", registry=registry).set(7)
    server, thread = prometheus.start_http_server(0, "127.0.0.1", registry)
    try:
        assert count_connected(server.server_address[1]) == 7
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert count_connected(server.server_address[1]) is None
