"""The containers: their commands are those of `local`, and their keys, names and networks fit."""

import getpass
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from commands import device_configs, gateway_config, superlink_command, supernode_command
from keys import make_keys
from local import edge_settings

from espalier.app.config.parse import parse_config, read_arguments
from espalier.version import __version__
from tests.dist import VERSIONS

from .faults import ROOT
from .test_certificates import handshake

DOCKER = ROOT / "deploy/docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
README = (DOCKER / "README.md").read_text(encoding="utf-8")
SERVICES = COMPOSE["services"]
EDGES, DEVICES = ("west", "east"), range(4)
TREE, STATE, SECRETS = Path("/opt/espalier"), Path("/var/lib/espalier"), Path("/etc/espalier")
NGINX = {"cloud", *EDGES}
SUPERLINKS = {f"{host}-superlink" for host in NGINX}
RUNS = {f"{edge}-run" for edge in EDGES}
GATEWAYS = [f"{edge}-gateway" for edge in EDGES]
SUPERNODES = [*GATEWAYS, *(f"device-{i}" for i in DEVICES)]


def settings_of(options):
    """Return the run config in a command."""
    return read_arguments(shlex.split(options[options.index("--run-config") + 1]))


def mounts(name):
    """Return what a container has of the host's folders and of volumes, by where it has it."""
    return {target: source for source, target, *_ in (volume.split(":") for volume in SERVICES[name]["volumes"])}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Make what the service `keys` makes."""
    _, _, folder, user, *hosts = SERVICES["keys"]["command"]
    assert (mounts("keys"), user) == ({folder: "./keys"}, "espalier")
    made = tmp_path_factory.mktemp("keys")
    named = dict(host.split("=") for host in hosts)
    make_keys(made, getpass.getuser(), {host: supernodes.split(",") for host, supernodes in named.items()})
    return made


def test_there_are_a_cloud_two_edge_hosts_and_four_devices():
    assert set(SERVICES) == {"keys", *NGINX, *SUPERLINKS, *RUNS, *SUPERNODES}


@pytest.mark.parametrize("name", sorted(SUPERLINKS))
def test_a_superlink_is_started_as_on_this_machine(name):
    database = ["--database", str(STATE / "superlink.db")]
    command = superlink_command("python", TREE / "deploy", "127.0.0.1:8000", SECRETS, database)
    assert SERVICES[name]["command"] == command
    assert SERVICES[name]["network_mode"] == f"service:{name.removesuffix('-superlink')}"


@pytest.mark.parametrize("name", SUPERNODES)
def test_a_supernode_is_started_as_on_this_machine(name):
    nodes = dict(zip(GATEWAYS, (gateway_config(e, 2, STATE / edge) for e, edge in enumerate(EDGES)), strict=True))
    nodes |= {f"device-{i}": config for i, config in zip(DEVICES, device_configs(DEVICES, 4), strict=True)}
    host = "cloud" if name in GATEWAYS else EDGES[DEVICES.index(int(name[-1])) // 2]
    assert SERVICES[name]["command"] == supernode_command(
        *("python", TREE / "deploy", f"{host}:9092", SECRETS / "ca.crt", SECRETS / "device", nodes[name]),
        ["--host", "127.0.0.1"],
    )
    assert SERVICES[name]["networks"] == SERVICES[host]["networks"] == [host]


def test_systemd_starts_them_likewise():
    def command_of(unit):
        text = (ROOT / f"deploy/systemd/espalier-{unit}.service").read_text(encoding="utf-8").replace("\\\n", " ")
        return re.findall(r"^ExecStart=(.*)$", text, re.M)[0].split()

    python, database = str(TREE / ".venv/bin/python"), ["--database", str(STATE / "superlink.db")]
    assert command_of("superlink") == superlink_command(python, TREE / "deploy", "127.0.0.1:8000", SECRETS, database)
    assert command_of("supernode") == supernode_command(
        *(python, TREE / "deploy", "${SUPERLINK}", Path("${CA}"), SECRETS / "device", "${NODE_CONFIG}"),
        ["--host", "127.0.0.1"],  # what it starts asks it there; nobody else has to
    )


@pytest.mark.parametrize("edge", EDGES)
def test_the_run_of_an_edge_has_the_settings_of_one_on_this_machine_and_those_of_the_clouds(edge):
    service = SERVICES[f"{edge}-run"]
    assert service["command"][:4] == ["python", str(TREE / "deploy/supervised_run.py"), str(TREE), "edge"]
    settings = settings_of(service["command"])
    on_this_machine = edge_settings(edge, 2, STATE / edge, Path("results"))
    of_its_own = {"deploy.wait-for-nodes", "deploy.transport", "stream.address", "stream.port"}
    (cloud,) = re.findall(r"^docker compose exec .* flwr run (.*)$", README, re.M)
    trained = settings_of(shlex.split(cloud))
    # A folder by itself, a port that is open, and a host that nobody shares.
    for role in ("output-dir", "resume", "stream.port", "deploy.metrics-port"):
        del on_this_machine[role]
    assert {key: settings[key] for key in on_this_machine} == on_this_machine
    assert {key: trained.get(key) for key in settings.keys() - on_this_machine - of_its_own} == {
        key: settings[key] for key in ("num-clients", "num-edges", "algorithm")
    }
    assert parse_config(settings).stream.address == edge
    assert service["network_mode"] == f"service:{edge}"
    # The run, the SuperLink that starts its program, and the gateway meet there.
    assert {mounts(f"{edge}-{part}")[str(STATE)] for part in ("run", "superlink", "gateway")} == {edge}


@pytest.mark.parametrize("name", SUPERNODES)
def test_a_supernode_trusts_its_host_under_the_name_that_it_has_and_is_registered_there(name, keys):
    host, _ = SERVICES[name]["command"][3].split(":")
    own = keys / Path(mounts(name)[str(SECRETS)]).name
    assert own.name == name
    assert sorted(file.name for file in own.iterdir()) == ["ca.crt", "device", "device.pub"]
    assert mounts(host)[str(SECRETS)] == mounts(f"{host}-superlink")[str(SECRETS)] == f"./keys/{host}"
    handshake(keys / host, own / "ca.crt", host)
    assert (keys / host / "devices" / f"{name}.pub").read_bytes() == (own / "device.pub").read_bytes()


def test_keys_are_not_made_twice(keys):
    before = (keys / "device-0/device").read_bytes()
    with pytest.raises(ValueError, match="west: is there already"):
        make_keys(keys, getpass.getuser(), {"north": ["device-9"], "west": ["device-0"]})
    assert not (keys / "north").exists()
    assert (keys / "device-0/device").read_bytes() == before


@pytest.mark.parametrize("host", sorted(NGINX))
def test_nginx_lets_devices_reach_the_fleet_api_alone(host):
    source = mounts(host)["/etc/nginx/conf.d/default.conf"]
    config = (DOCKER / source).read_text(encoding="utf-8")
    assert "location /v1/fleet/ {\n        proxy_pass https://127.0.0.1:8000;" in config
    assert set(re.findall(r"(/etc/espalier/\S+);", config)) == {
        str(SECRETS / name) for name in ("server.crt", "server.key", "ca.crt")
    }
    assert "ports" not in SERVICES[host]


def test_the_image_has_what_the_units_set_and_flwr_finds_the_superlink():
    lines = (DOCKER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert [name for name, _ in instructions] == ["FROM", "ARG", "RUN", "WORKDIR", "COPY", "RUN", "ENV", "USER", "RUN"]
    values = dict(instructions)
    assert re.fullmatch(rf"python:({'|'.join(map(re.escape, VERSIONS))})-slim", values["FROM"])
    assert (values["WORKDIR"], values["USER"]) == (str(TREE), "espalier")
    environment = dict(variable.split("=") for variable in values["ENV"].split())
    units = "".join(unit.read_text(encoding="utf-8") for unit in (ROOT / "deploy/systemd").glob("*.service"))
    set_there = dict(re.findall(r"^Environment=(FLWR_\w+|GRPC_\w+)=(.*)$", units, re.M))
    assert set_there.keys() == environment.keys()
    assert {key for key in environment if environment[key] != set_there[key]} <= {
        "FLWR_HOME"
    }  # an edge's run has its own
    assert any("'.[app]'" in text and "constraints.txt" in text for name, text in instructions if name == "RUN")
    images = {name: service["image"] for name, service in SERVICES.items() if name not in NGINX}
    assert set(images.values()) == {f"espalier:{__version__}"}
    connections = tomllib.loads((DOCKER / "config.toml").read_text(encoding="utf-8"))["superlink"]
    assert connections == {
        name: {"address": "127.0.0.1:8000", "root-certificates": "/etc/espalier/ca.crt"} for name in ("cloud", "edge")
    }


def test_the_page_names_services_that_there_are():
    named = re.findall(r"docker compose (?:build|run --rm|exec|cp) ([a-z-]+)", README)
    named += [f"{host}-superlink" for host in re.findall(r"^for host in (.*); do$", README, re.M)[0].split()]
    assert set(named) - set(SERVICES) == set()
    assert len(named) > 6
